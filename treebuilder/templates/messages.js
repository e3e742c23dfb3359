// Messages as a reader wants them: roles, tool calls, results, images; long texts folded; always plain text.

const LONG = 1200; // characters shown of a long text
const LINES = 14;

const ROLES = { system: 'system', user: 'user', assistant: 'assistant', tool: 'tool' };

/** A text, folded where it is long. `marks`: [start, stop, class] in UTF-16 units, in order. */
function longText(text, { marks = [], open = false, mono = false } = {}) {
  const limit = open ? text.length : fits(text);
  const need = marks.length ? Math.min(text.length, marks[0][1] + 200) : 0;
  const body = h('div', { class: mono ? 'text mono' : 'text' });
  const render = (stop) => body.replaceChildren(...marked(text, stop, marks));
  render(Math.max(limit, need));
  if (Math.max(limit, need) >= text.length) return [body];
  const button = h('button', { class: 'more', type: 'button', 'aria-expanded': 'false' });
  const label = (opened) => {
    button.textContent = opened ? 'Show less' : `Show all ${whole(text.length)} characters`;
    button.setAttribute('aria-expanded', String(opened));
  };
  let opened = false;
  button.addEventListener('click', () => {
    opened = !opened;
    render(opened ? text.length : Math.max(limit, need));
    label(opened);
  });
  label(false);
  return [body, button];
}

function fits(text) {
  let at = 0;
  for (let line = 0; line < LINES; line++) {
    const end = text.indexOf('\n', at);
    if (end < 0 || end > LONG) return text.length <= LONG + 200 ? text.length : LONG;
    at = end + 1;
  }
  return text.length - at < 200 ? text.length : at - 1;
}

function marked(text, stop, marks) {
  const found = [];
  let at = 0;
  for (const [from, to, kind] of marks) {
    if (from >= stop || from < at) continue;
    found.push(text.slice(at, from), h('mark', { class: kind }, text.slice(from, Math.min(to, stop))));
    at = Math.min(to, stop);
  }
  found.push(text.slice(at, stop) + (stop < text.length ? '…' : ''));
  return found;
}

/** Where a search term stands in a text. */
function termMarks(text, term) {
  const found = [];
  if (!term) return found;
  for (const hit of text.matchAll(term)) {
    found.push([hit.index, hit.index + hit[0].length, 'hit']);
    if (found.length === 200) break;
  }
  return found;
}

/** Arguments of a tool call, one a line, strings as they read. */
function argumentsOf(block, term) {
  let value;
  try {
    value = JSON.parse(block.text);
  } catch {
    return longText(block.text, { mono: true, marks: termMarks(block.text, term) });
  }
  if (value === null || typeof value !== 'object' || Array.isArray(value))
    return longText(block.text, { mono: true, marks: termMarks(block.text, term) });
  return [
    h(
      'dl',
      { class: 'arguments' },
      Object.entries(value).flatMap(([name, one]) => {
        const text = typeof one === 'string' ? one : JSON.stringify(one, null, 2);
        return [h('dt', {}, name), h('dd', {}, longText(text, { mono: true, marks: termMarks(text, term) }))];
      }),
    ),
  ];
}

function blockElement(block, term) {
  const text = () => longText(block.text, { marks: termMarks(block.text, term) });
  switch (block.kind) {
    case 'text':
      return h('div', { class: 'block' }, text());
    case 'thinking':
      return h(
        'div',
        { class: 'block thinking' },
        h('div', { class: 'label' }, 'thinking'),
        block.text ? text() : h('div', { class: 'quiet' }, 'hidden by the server'),
      );
    case 'tool_call':
      return h(
        'div',
        { class: 'block tool' },
        h('div', { class: 'label' }, 'calls ', h('b', {}, block.name), block.id && h('code', { class: 'quiet' }, block.id)),
        argumentsOf(block, term),
      );
    case 'tool_result':
      return h(
        'div',
        { class: 'block result' },
        h(
          'div',
          { class: 'label' },
          block.error ? 'failed result' : 'result',
          block.name && h('b', {}, ' ' + block.name),
          block.id && h('code', { class: 'quiet' }, block.id),
        ),
        block.text && longText(block.text, { mono: true, marks: termMarks(block.text, term) }),
        (block.parts || []).map((part) =>
          part.kind === 'text'
            ? longText(part.text, { mono: true, marks: termMarks(part.text, term) })
            : blockElement(part, term),
        ),
      );
    case 'image':
      return h(
        'div',
        { class: 'block' },
        h('div', { class: 'label' }, 'image ', block.name || ''),
        block.data ? h('img', { src: block.data, alt: 'image in the context' }) : h('code', { class: 'quiet' }, cut(block.text, 80)),
      );
    default:
      return h('div', { class: 'block' }, h('div', { class: 'label' }, block.name || block.kind), longText(block.text, { mono: true }));
  }
}

/** One line that says what a folded message holds. */
function gist(message) {
  const blocks = blocksOf(message);
  const said = blocks.find((block) => block.kind !== 'thinking') || blocks[0];
  if (!said) return 'empty';
  const first =
    said.kind === 'tool_call' ? `calls ${said.name} ${said.text}` : said.kind === 'image' ? 'image' : plain(said);
  return oneLine(first, 160);
}

/**
 * A message that opens and closes. `place`: its index in the context, or null. `from`: the turn that sampled it.
 */
function messageElement(message, { place, open, fresh, from, exact, sampled, term, target }) {
  const [role] = data.messages[message];
  const chars = blocksOf(message).reduce((sum, block) => sum + size(block), 0);
  const body = h('div', { class: 'body' });
  const render = () => body.replaceChildren(...blocksOf(message).map((block) => blockElement(block, term)));
  const details = h(
    'details',
    { class: `message ${role}${fresh ? ' new' : ''}${sampled ? ' sampled' : ''}${target ? ' target' : ''}` },
    h(
      'summary',
      {},
      h('span', { class: 'role' }, ROLES[role] || role),
      place !== null && h('span', { class: 'place' }, '#' + place),
      sampled && h('span', { class: 'chip strong' }, 'sampled now'),
      from && h('a', { class: 'chip', href: link(from) }, `sampled in ${from.number}${exact ? '' : ', changed'}`),
      fresh && !sampled && h('span', { class: 'chip' }, 'new'),
      h('span', { class: 'gist' }, gist(message)),
      h('span', { class: 'chars' }, amount(chars)),
    ),
    body,
  );
  details.addEventListener('toggle', () => details.open && !body.firstChild && render());
  if (open) {
    render();
    details.open = true;
  }
  return details;
}

const link = (turn, view) => `#call=${encodeURIComponent(turn.number)}${view ? '&view=' + view : ''}`;
