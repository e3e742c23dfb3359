// The calls of one session, one row each; only the rows in sight exist.

const OVERSCAN = 8;

function makeList({ select, open }) {
  const rowsHere = h('div', { class: 'rows', role: 'presentation' });
  const spacer = h('div', { class: 'spacer', role: 'presentation' }, rowsHere);
  const scroller = h('div', {
    class: 'calls',
    role: 'listbox',
    tabindex: '0',
    'aria-label': 'Calls, oldest first',
    onscroll: () => draw(),
  }, spacer);
  const pill = h('button', { class: 'pill', type: 'button', hidden: true, onclick: () => toEnd() });
  const names = h('div', { class: 'row names', 'aria-hidden': 'true' });
  const element = h('div', { class: 'list' }, names, scroller, pill);
  let rows = [];
  let plan = { cells: [], columns: 1 };
  let rowOf = new Map();
  let selected = -1;
  let kept = null;
  let most = 1;
  let height = 32;
  let unseen = 0;
  let drawn = '';
  let usual = '';

  function show(turns, { folded, opened }) {
    rows = folded ? fold(turns, opened) : turns.map((turn) => [turn]);
    rowOf = new Map();
    rows.forEach((some, row) => some.forEach((turn) => rowOf.set(turn.index, row)));
    plan = layout(rows, element.clientWidth < 520 ? 3 : element.clientWidth < 640 ? 5 : 7);
    const longest = rows.reduce((max, some) => Math.max(max, numbers(some).length), 3);
    element.style.setProperty('--numbers', longest * 7.6 + 20 + 'px');
    const plainest = turns.find((turn) => !turn.aside) || turns[0];
    usual = plainest ? model(plainest) : '';
    most = turns.reduce((max, turn) => Math.max(max, turn.aside ? 0 : turn.chars + evicted(turn)), 1);
    names.replaceChildren(
      s('svg', { class: 'lanes', width: plan.columns * LANE + 8, height: 1 }),
      ...['call', 'what happened', 'context', 'left', 'came', 'model', 'time'].map((name, i) =>
        h('span', { class: CELLS[i] }, name),
      ),
    );
    drawn = '';
    draw();
  }

  const measure = () => (height = parseFloat(getComputedStyle(scroller).getPropertyValue('--row')) || 32);

  function draw() {
    measure();
    spacer.style.height = rows.length * height + 'px';
    const first = Math.max(0, Math.floor(scroller.scrollTop / height) - OVERSCAN);
    const last = Math.min(rows.length, Math.ceil((scroller.scrollTop + scroller.clientHeight) / height) + OVERSCAN);
    if (last >= rows.length - OVERSCAN) noticed();
    const key = [first, last, height, selected].join();
    if (key === drawn) return;
    drawn = key;
    rowsHere.style.transform = `translateY(${first * height}px)`;
    const made = [];
    for (let row = first; row < last; row++) made.push(rowElement(row));
    rowsHere.replaceChildren(...made);
    const at = rowOf.get(selected);
    if (at >= first && at < last) scroller.setAttribute('aria-activedescendant', 'row' + at);
    else scroller.removeAttribute('aria-activedescendant');
  }

  function rowElement(row) {
    const turns = rows[row];
    const turn = turns[turns.length - 1];
    const cell = plan.cells[row];
    const before = rows[row - 1];
    const folded = turns.length > 1;
    const gone = turns.reduce((sum, one) => sum + evicted(one), 0);
    const came = turns.reduce((sum, one) => sum + inserted(one), 0);
    const lane = turn.lane !== 'main' && (!before || before[0].thread !== turn.thread) ? turn.lane : '';
    const lost = kept && turn.reply && turn.index < selected && turn.thread === data.turns[selected].thread && !turns.some((one) => kept.has(one.index));
    const modelBefore = turnAt(turn.parent) ? model(turnAt(turn.parent)) : usual;
    const chosen = rowOf.get(selected) === row;
    const label = [
      `call ${turns[0].number}${folded ? ' to ' + turn.number : ''}`,
      folded ? `${turns.length} appends` : words(turn.kind),
      turn.lane === 'main' ? '' : turn.lane,
      turn.opaque && 'opaque',
      `${amount(turn.chars)} characters`,
      gone ? `${amount(gone)} left` : '',
      came ? `${amount(came)} came` : '',
      lost ? 'no longer in the chosen context' : '',
    ];
    return h(
      'div',
      {
        class: `row k-${family(turn)}${chosen ? ' chosen' : ''}${lost ? ' lost' : ''}`,
        id: 'row' + row,
        role: 'option',
        'aria-selected': String(chosen),
        'aria-setsize': String(rows.length),
        'aria-posinset': String(row + 1),
        'aria-label': label.filter(Boolean).join(', '),
        onclick: () => open(folded ? turns : [turn], folded),
      },
      lanes(cell, turn, plan.columns, height, folded),
      h('span', { class: CELLS[0] }, numbers(turns)),
      h(
        'span',
        { class: CELLS[1] },
        h('span', { class: 'kindname' }, folded ? `${turns.length} appends` : words(turn.kind)),
        lane && h('span', { class: 'chip' }, laneName(lane)),
        model(turn) !== modelBefore && h('span', { class: 'chip othermodel' }, model(turn)),
        turn.opaque && h('span', { class: 'chip warn' }, 'opaque'),
        failed(turn) && h('span', { class: 'chip warn' }, failed(turn)),
      ),
      h('span', { class: CELLS[2] }, bar(turn, gone, came, most), h('span', {}, amount(turn.chars))),
      h('span', { class: CELLS[3] }, gone ? '−' + amount(gone) : ''),
      h('span', { class: CELLS[4] }, came ? '+' + amount(came) : ''),
      h('span', { class: CELLS[5] }, model(turn)),
      h('span', { class: CELLS[6] }, clock(turn.at)),
    );
  }

  function reveal(index) {
    const row = rowOf.get(index);
    if (row === undefined || !scroller.clientHeight) return;
    measure();
    spacer.style.height = rows.length * height + 'px';
    const top = row * height;
    const spare = scroller.clientHeight > height * 6 ? height * 2 : 0;
    if (top < scroller.scrollTop + spare) scroller.scrollTop = top - spare;
    else if (top + height > scroller.scrollTop + scroller.clientHeight - spare)
      scroller.scrollTop = top + height + spare - scroller.clientHeight;
  }

  function choose(index, { scroll = true } = {}) {
    selected = index;
    kept = index >= 0 && !data.turns[index].aside ? survivors(data.turns[index]) : null;
    if (scroll) reveal(index);
    drawn = '';
    draw();
  }

  function step(by) {
    const at = rowOf.get(selected);
    const row = at === undefined ? (by > 0 ? 0 : rows.length - 1) : at + by;
    if (rows[row]) select(rows[row][rows[row].length - 1]);
  }

  function toEdit(by) {
    const at = rowOf.get(selected);
    for (let row = at === undefined ? (by > 0 ? 0 : rows.length - 1) : at + by; rows[row]; row += by) {
      const edit = rows[row].find(isEdit);
      if (edit) return select(edit);
    }
    return undefined;
  }

  function toEnd(by = 1) {
    const some = rows[by > 0 ? rows.length - 1 : 0];
    if (some) select(some[some.length - 1]);
  }

  function noticed() {
    unseen = 0;
    pill.hidden = true;
  }

  function arrived(n) {
    const below = scroller.scrollTop + scroller.clientHeight < (rows.length - 1) * height;
    if (!n || !below) return;
    unseen += n;
    pill.textContent = `${count(unseen, 'new call')} ↓`;
    pill.hidden = false;
  }

  new ResizeObserver(() => draw()).observe(scroller);
  return { element, scroller, show, choose, step, toEdit, toEnd, arrived };
}

const CELLS = ['number', 'kind', 'size', 'gone', 'came', 'model', 'time'];

/** Runs of appends of one thread become one row, unless the reader opened the run. */
function fold(turns, opened) {
  const rows = [];
  for (const turn of turns) {
    const run = rows[rows.length - 1];
    const joins =
      run && turn.kind === 'append' && run[0].kind === 'append' && run[0].thread === turn.thread && !turn.opaque;
    if (joins && !opened.has(run[0].index)) run.push(turn);
    else if (joins) {
      opened.add(turn.index);
      rows.push([turn]);
    } else rows.push([turn]);
  }
  return rows;
}

/** `1087–94`. */
function numbers(turns) {
  const [a, b] = [turns[0].number, turns[turns.length - 1].number];
  if (a === b) return a;
  let same = 0;
  while (a.length === b.length && same < b.length - 2 && a[same] === b[same]) same += 1;
  return `${a}–${b.slice(same)}`;
}

/** `agent a5556614`: enough of an id to tell agents apart. */
function laneName(lane) {
  const [what, id] = lane.split(/:(.*)/);
  return id ? `${what} ${id.slice(0, 8)}` : what;
}

/** How the call ended, where it did not end well. */
function failed(turn) {
  if (turn.outcome === 'complete') return turn.reply && !turn.reply.complete ? 'cut' : '';
  return turn.outcome === 'http_error' ? 'HTTP ' + turn.status : words(turn.outcome);
}

/** The context's size: what stayed, what came, and, behind it, what left. */
function bar(turn, gone, came, most) {
  const width = 68;
  if (turn.aside) return s('svg', { class: 'bar', width, height: 10, 'aria-hidden': 'true' });
  const scale = width / most;
  const total = turn.chars * scale;
  const fresh = Math.min(total, came * scale);
  return s(
    'svg',
    { class: 'bar', width, height: 10, 'aria-hidden': 'true' },
    s('rect', { class: 'stayed', x: 0, y: 1, width: Math.max(0.5, total - fresh), height: 8 }),
    fresh > 0 && s('rect', { class: 'fresh', x: total - fresh, y: 1, width: fresh, height: 8 }),
    gone > 0 && s('rect', { class: 'ghost', x: total + 0.5, y: 1.5, width: Math.max(0.5, gone * scale - 1), height: 7 }),
  );
}
