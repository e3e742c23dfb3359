// One call, opened: the context that the model had, what it sampled, the system text and tools.

const AT_ONCE = 120; // messages drawn at a time

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
    const leave = h('button', { class: 'icon back', type: 'button', 'aria-label': 'Back to the calls', onclick: close }, '←');
    element.replaceChildren(h('div', { class: 'page' }, leave, parts));
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
  const sampled = turn.reply && data.messages[turn.reply.message][1].length > 0;
  const reply = sampled && messageElement(turn.reply.message, {
    place: null, open: true, sampled: true, term, target: place === messages.length,
  });
  scroller.append(
    reply || h('p', { class: 'note' }, turn.reply ? 'Nothing was sampled.' : 'No reply arrived.'),
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
