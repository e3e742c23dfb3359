// What an edit did: its kind and why we think so, what left beside what came.

const AROUND = 160; // characters shown on either side of a changed span

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
    isEdit(turn) && [h('dt', {}, 'Replies kept'), h('dd', {}, keptReplies(turn))],
    turn.evidence.length > 0 && [
      h('dt', {}, 'Evidence'),
      h('dd', {}, h('ul', { class: 'evidence' }, turn.evidence.map(evidenceElement))),
    ],
  );
  scroller.replaceChildren(facts);
  if (before) headChange(scroller, before, turn);
  if (turn.edit) scroller.append(sides(turn, before));
}

/** `3 of 5: calls 4, 6–7`: sampled earlier in this thread, and still in the context behind the edit. */
function keptReplies(turn) {
  const earlier = turnsOf(turn.session).filter(
    (one) => one.thread === turn.thread && one.index < turn.index && one.reply && blocksOf(one.reply.message).length,
  );
  const kept = survivors(turn);
  const runs = [];
  earlier.forEach((one, i) => {
    if (!kept.has(one.index)) return;
    const run = runs[runs.length - 1];
    if (run && run[1] === i - 1) run[1] = i;
    else runs.push([i, i]);
  });
  const names = runs.map(([a, b]) => earlier[a].number + (b > a ? `–${earlier[b].number}` : ''));
  const total = runs.reduce((sum, [a, b]) => sum + b - a + 1, 0);
  return `${total} of ${earlier.length}` + (total ? `, of call${total > 1 ? 's' : ''} ${names.join(', ')}` : '');
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
