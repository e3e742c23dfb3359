// One call, opened: the context that the model had, what left and came, the system text and tools.

const AT_ONCE = 120; // messages drawn at a time
const AROUND = 160; // characters shown on either side of a changed span

const VIEWS = { context: 'Context', edit: 'What changed', head: 'System and tools' };

function makeDetail({ go, close }) {
  const element = h('section', { class: 'detail', 'aria-label': 'Selected call', tabindex: '-1' });
  const scroller = h('div', { class: 'page', role: 'tabpanel', id: 'panel', tabindex: '0' });
  let shown = null;

  /** `place` opens that message and scrolls to it; `term` is marked in what is opened. */
  function show(turn, view, { place = null, term = null } = {}) {
    const key = JSON.stringify([turn, view, place, term && term.source]);
    if (shown && shown.key === key) return;
    const same = shown && shown.number === turn.number && shown.view === view && place === null;
    const at = scroller.scrollTop;
    const folds = same ? [...scroller.querySelectorAll('details')].map((one) => one.open) : [];
    shown = { key, number: turn.number, view };
    element.replaceChildren(header(turn), tabs(turn, view), scroller);
    scroller.setAttribute('aria-labelledby', 'tab-' + view);
    const target = { context: contextView, edit: editView, head: headView }[view](scroller, turn, place, term);
    if (same) {
      scroller.querySelectorAll('details').forEach((one, i) => i in folds && (one.open = folds[i]));
      scroller.scrollTop = at;
    } else if (target) {
      target.scrollIntoView({ block: place === null ? 'start' : 'center' });
    } else scroller.scrollTop = 0;
  }

  function empty(parts) {
    shown = null;
    element.replaceChildren(h('div', { class: 'page' }, parts));
  }

  function header(turn) {
    const usage = turn.reply ? turn.reply.usage : {};
    const prompt = ['input', 'cache_read', 'cache_write'].reduce((sum, name) => sum + (usage[name] || 0), 0);
    const facts = [
      day(turn.at),
      lasting(turn.seconds),
      model(turn),
      count(turn.depth, 'message'),
      `${whole(turn.chars)} characters`,
      prompt ? `${whole(prompt)} tokens in` : '',
      usage.output ? `${whole(usage.output)} out` : '',
      turn.reply && turn.reply.stop ? 'stop: ' + turn.reply.stop : '',
    ];
    return h(
      'header',
      { class: 'callhead' },
      h(
        'div',
        { class: 'line' },
        h('button', { class: 'icon back', type: 'button', 'aria-label': 'Back to the calls', onclick: close }, '←'),
        h('h2', {}, 'Call ', turn.number),
        h('span', { class: `kindtag k-${family(turn)}` }, badge(turn), words(turn.kind)),
        turn.lane !== 'main' && h('span', { class: 'chip', title: turn.lane }, laneName(turn.lane)),
        failed(turn) && h('span', { class: 'chip warn' }, failed(turn)),
        h('span', { class: 'push' }),
        h('button', { class: 'icon close', type: 'button', 'aria-label': 'Close this call', onclick: close }, '✕'),
      ),
      h('p', { class: 'facts' }, facts.filter(Boolean).map((fact) => h('span', {}, fact))),
      turn.error && h('p', { class: 'warning' }, turn.error),
      turn.opaque && h('p', { class: 'warning' }, 'Not what the model saw, or not known: ', turn.opaque),
    );
  }

  function tabs(turn, view) {
    const names = Object.keys(VIEWS).filter((name) => name !== 'edit' || hasEdit(turn));
    const move = (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!by) return;
      event.preventDefault();
      event.stopPropagation();
      const next = names[(names.indexOf(view) + by + names.length) % names.length];
      go(turn, { view: next });
      document.getElementById('tab-' + next).focus();
    };
    return h(
      'div',
      { class: 'tabs', role: 'tablist', onkeydown: move },
      names.map((name) =>
        h(
          'button',
          {
            type: 'button',
            role: 'tab',
            id: 'tab-' + name,
            'aria-controls': 'panel',
            'aria-selected': String(name === view),
            tabindex: name === view ? '0' : '-1',
            onclick: () => {
              go(turn, { view: name });
              document.getElementById('tab-' + name).focus();
            },
          },
          VIEWS[name],
        ),
      ),
    );
  }

  return { element, scroller, show, empty };
}

const hasEdit = (turn) => turn.edit !== null || turn.evidence.length > 0;
const firstView = (turn) => (isEdit(turn) && turn.edit ? 'edit' : 'context');

function contextView(scroller, turn, place, term) {
  const messages = walk(turn.node);
  const said = echoes(turn);
  const known = turn.edit ? turn.edit.kept : 0;
  const fresh = (at) => (turn.edit ? turn.edit.hunks.some(([, , from, some]) => at >= from && at < from + some.length) : false);
  const firstNew = turn.edit ? Math.min(known, messages.length) : Math.max(0, messages.length - 2);
  const made = messages.map((message, at) => () => {
    const [source, exact] = said.get(at) || [-1];
    const open = at === place || (place === null && (at >= firstNew || fresh(at)));
    return messageElement(message, {
      place: at, open, fresh: fresh(at), from: turnAt(source), exact, term, target: at === place,
    });
  });
  const from = place === null ? Math.max(0, Math.min(firstNew, messages.length - 20)) : Math.max(0, place - 20);
  const list = h('div', { class: 'messages' });
  scroller.replaceChildren(
    h('p', { class: 'note' }, messages.length
      ? `${count(messages.length, 'message')}, behind the system text and tools; what was sampled comes last.`
      : 'No message is known.'),
    list,
  );
  const ends = chunked(list, made, from, Math.max(from + AT_ONCE, firstNew + 40));
  const reply = turn.reply && messageElement(turn.reply.message, {
    place: null, open: true, sampled: true, term, target: place === messages.length,
  });
  scroller.append(
    reply || h('p', { class: 'note' }, 'No reply arrived.'),
    ...(turn.reply ? turn.reply.notes.map((note) => h('p', { class: 'note' }, note)) : []),
  );
  if (place !== null) return place === messages.length ? reply : ends(place);
  return turn.edit && messages.length > 2 ? ends(Math.min(firstNew, messages.length - 1)) : null;
}

/** Draws items [from, to) and buttons for the rest; gives a way to find the element of an item drawn. */
function chunked(list, made, from, to) {
  let first = Math.min(from, made.length);
  let last = Math.min(to, made.length);
  const elements = new Map();
  const draw = (at) => {
    const element = made[at]();
    elements.set(at, element);
    return element;
  };
  const earlier = h('button', { class: 'more', type: 'button' });
  const later = h('button', { class: 'more', type: 'button' });
  const label = () => {
    earlier.hidden = first === 0;
    later.hidden = last >= made.length;
    earlier.textContent = `Show ${whole(Math.min(AT_ONCE, first))} of ${count(first, 'earlier message')}`;
    later.textContent = `Show ${whole(Math.min(AT_ONCE, made.length - last))} of ${count(made.length - last, 'later message')}`;
  };
  earlier.addEventListener('click', () => {
    const until = first;
    first = Math.max(0, first - AT_ONCE);
    const some = [];
    for (let at = first; at < until; at++) some.push(draw(at));
    earlier.after(...some);
    label();
  });
  later.addEventListener('click', () => {
    const at = last;
    last = Math.min(made.length, last + AT_ONCE);
    for (let i = at; i < last; i++) later.before(draw(i));
    label();
  });
  list.append(earlier);
  for (let at = first; at < last; at++) list.append(draw(at));
  list.append(later);
  label();
  return (at) => elements.get(at);
}

function editView(scroller, turn, place, term) {
  const before = turnAt(turn.parent);
  const source = turnAt(turn.quotes);
  const origin = turnAt(turn.origin);
  const facts = h(
    'dl',
    { class: 'verdict' },
    h('dt', {}, 'Kind'),
    h('dd', {}, words(turn.kind), h('span', { class: 'quiet' }, `  ${Math.round(turn.confidence * 100)} % sure`)),
    before && [h('dt', {}, 'Compared with'), h('dd', {}, h('a', { href: link(before) }, `call ${before.number}`),
      before.session === turn.session ? '' : ` of session ${before.session}`)],
    source && [h('dt', {}, 'Summary from'), h('dd', {}, h('a', { href: link(source, 'context') }, `call ${source.number}`))],
    origin && [h('dt', {}, 'Started by'), h('dd', {}, h('a', { href: link(origin, 'context') }, `call ${origin.number}`))],
    turn.evidence.length > 0 && [
      h('dt', {}, 'Evidence'),
      h('dd', {}, h('ul', { class: 'evidence' }, turn.evidence.map(evidenceElement))),
    ],
  );
  scroller.replaceChildren(facts);
  if (before) headChange(scroller, before, turn);
  if (turn.edit) scroller.append(sides(turn, before));
}

function evidenceElement(text) {
  const [, kind, said] = /^(\w+):([^]*)$/.exec(text) || [null, '', text];
  return h('li', {}, kind && h('span', { class: 'chip' }, kind), said);
}

/** Old and new, side by side: kept runs as one line, changed ranges next to each other. */
function sides(turn, before) {
  const { edit } = turn;
  const grid = h('div', { class: 'sides' });
  const changed = (spans) => new Set(spans.map(([message, block]) => `${message}.${block}`)).size;
  grid.append(
    h('h3', { class: 'gone' }, h('span', {}, `− left: ${whole(edit.evicted_chars)} characters`),
      h('span', { class: 'quiet' }, count(changed(edit.evicted), 'block') + (before ? `, was in call ${before.number}` : ''))),
    h('h3', { class: 'came' }, h('span', {}, `+ came: ${whole(edit.inserted_chars)} characters`),
      h('span', { class: 'quiet' }, count(changed(edit.inserted), 'block') + `, is in call ${turn.number}`)),
  );
  let at = 0;
  const keptRun = (until) => {
    if (until > at) grid.append(h('p', { class: 'keptrun' }, `${count(until - at, 'message')} kept`));
  };
  for (const [oldFrom, old, newFrom, now] of edit.hunks) {
    const was = (m) => m >= oldFrom && m < oldFrom + old.length;
    const is = (m) => m >= newFrom && m < newFrom + now.length;
    keptRun(newFrom);
    at = newFrom + now.length;
    const gone = edit.evicted.filter(([m]) => was(m)).map((span) => [span, '']);
    const came = edit.inserted.filter(([m]) => is(m)).map((span) => [span, '']);
    for (const [a, b] of edit.moved) {
      if (was(a[0])) gone.push([a, `moved to #${b[0]}`]);
      if (is(b[0])) came.push([b, `moved from #${a[0]}`]);
    }
    for (const [left, right] of pairs(gone, came, newFrom - oldFrom))
      grid.append(side('gone', left, (m) => old[m - oldFrom]), side('came', right, (m) => now[m - newFrom]));
  }
  keptRun(turn.depth);
  return grid;
}

/** A block changed in place stands in a row of its own, its old text beside its new one; the rest between such rows. */
function pairs(gone, came, shift) {
  const inOrder = ([a], [b]) => a[0] - b[0] || a[1] - b[1] || a[2] - b[2];
  gone.sort(inOrder);
  came.sort(inOrder);
  const rows = [];
  let [i, j] = [0, 0];
  gone.forEach(([[message, block, start]], at) => {
    const other = came.findIndex(
      ([span, note], k) => k >= j && !note && span[0] === message + shift && span[1] === block && span[2] === start,
    );
    if (other < 0 || gone[at][1]) return;
    if (i < at || j < other) rows.push([gone.slice(i, at), came.slice(j, other)]);
    rows.push([[gone[at]], [came[other]]]);
    [i, j] = [at + 1, other + 1];
  });
  if (i < gone.length || j < came.length) rows.push([gone.slice(i), came.slice(j)]);
  return rows;
}

function side(name, spans, messageAt) {
  return h(
    'div',
    { class: 'side ' + name },
    spans.length
      ? spans.map(([span, note]) => spanElement(name, span, messageAt, note))
      : h('p', { class: 'quiet none' }, '–'),
  );
}

function spanElement(name, [message, index, start, stop], messageAt, note) {
  const number = messageAt(message);
  const block = blocksOf(number)[index];
  const text = plain(block);
  const [from, to] = points(text, start, stop);
  const blank = text[0] === '\n' ? 1 : 0; // a result has no text of its own before its parts
  const whole_ = from <= blank && to === text.length;
  const lead = Math.max(0, from - AROUND);
  const tail = Math.min(text.length, to + AROUND);
  const shown = (lead ? '…' : '') + text.slice(lead || blank, tail) + (tail < text.length ? '…' : '');
  const shift = lead ? lead - 1 : blank;
  const marks = whole_ || note ? [] : [[Math.max(0, from - shift), to - shift, name]];
  return h(
    'article',
    { class: `span${whole_ && !note ? ' whole' : ''}${note ? ' moved' : ''}` },
    h(
      'div',
      { class: 'label' },
      h('b', { class: 'sign' }, note ? '↔' : name === 'gone' ? '−' : '+'),
      h('span', { class: 'place' }, '#' + message),
      `${data.messages[number][0]} · ${words(block.kind)}${block.name ? ' ' + block.name : ''}`,
      h('span', { class: 'quiet' }, note || (whole_ ? `${amount(text.length)}` : `${amount(to - from)} of ${amount(text.length)}`)),
    ),
    longText(shown, { mono: block.kind !== 'text' && block.kind !== 'thinking', marks }),
  );
}

/** What changed in front of the messages. */
function headChange(scroller, before, turn) {
  const [a, b] = [data.heads[before.head], data.heads[turn.head]];
  if (a === b) return;
  const lines = [];
  if (a.model !== b.model) lines.push(['model', `${a.model} → ${b.model}`]);
  const lost = a.tools.filter((tool) => !b.tools.includes(tool)).map((tool) => data.tools[tool][0]);
  const won = b.tools.filter((tool) => !a.tools.includes(tool)).map((tool) => data.tools[tool][0]);
  const altered = lost.filter((name) => won.includes(name));
  const only = (names) => names.filter((name) => !altered.includes(name)).join(', ');
  if (only(lost)) lines.push(['tools −', only(lost)]);
  if (only(won)) lines.push(['tools +', only(won)]);
  if (altered.length) lines.push(['tools changed', altered.join(', ')]);
  const gone = a.system.filter((block) => !b.system.includes(block));
  const came = b.system.filter((block) => !a.system.includes(block));
  if (lines.length)
    scroller.append(h('dl', { class: 'verdict' }, lines.map(([name, text]) => [h('dt', {}, name), h('dd', {}, text)])));
  if (!gone.length && !came.length) return;
  const texts = (blocks, name) =>
    h('div', { class: 'side ' + name }, blocks.length
      ? blocks.map((block) => h('article', { class: 'span whole' }, longText(plain(data.blocks[block]))))
      : h('p', { class: 'quiet none' }, '–'));
  scroller.append(
    h('div', { class: 'sides' },
      h('h3', { class: 'gone' }, '− left the system text'), h('h3', { class: 'came' }, '+ came into the system text'),
      texts(gone, 'gone'), texts(came, 'came')),
  );
}

function headView(scroller, turn) {
  const head = data.heads[turn.head];
  const lazily = (details, render) => {
    details.addEventListener('toggle', () => details.open && details.children.length === 1 && details.append(...render()));
    return details;
  };
  const pretty = (schema) => {
    try {
      return JSON.stringify(JSON.parse(schema), null, 2);
    } catch {
      return schema;
    }
  };
  scroller.replaceChildren(
    h('h3', { class: 'section' }, 'System text'),
    head.system.length
      ? h('div', { class: 'messages' }, head.system.map((block, i) =>
          h('details', { class: 'message system', open: i === head.system.length - 1 },
            h('summary', {}, h('span', { class: 'role' }, 'system'), h('span', { class: 'gist' }, oneLine(plain(data.blocks[block]), 160)),
              h('span', { class: 'chars' }, amount(size(data.blocks[block])))),
            h('div', { class: 'body' }, blockElement(data.blocks[block])))))
      : h('p', { class: 'note' }, 'None was sent.'),
    h('h3', { class: 'section' }, head.tools.length ? count(head.tools.length, 'tool') : 'No tools'),
    h('div', { class: 'messages' }, head.tools.map((tool) => {
      const [name, description, schema] = data.tools[tool];
      return lazily(
        h('details', { class: 'message' },
          h('summary', {}, h('b', { class: 'toolname' }, name), h('span', { class: 'gist' }, oneLine(description, 160)),
            h('span', { class: 'chars' }, amount(name.length + description.length + schema.length)))),
        () => [h('div', { class: 'body' }, longText(description), longText(pretty(schema), { mono: true }))],
      );
    })),
  );
}
