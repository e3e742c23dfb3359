// Lanes over time, drawn as git draws branches: down while the context grows, across where it was edited.

const LANE = 14;

/**
 * rows: arrays of turns, one array a row. Gives each row its column and the strokes that cross it:
 * {cells: [{column, strokes: [[shape, column, other, thread, dashed]]}], columns}. More lanes than `most` share the last.
 */
function layout(rows, most) {
  const rowOf = new Map();
  rows.forEach((turns, row) => turns.forEach((turn) => rowOf.set(turn.index, row)));
  const threads = new Map();
  const tips = new Map();
  const chains = [];
  rows.forEach((turns, row) => {
    for (const turn of turns) {
      if (turn.aside) continue;
      if (!threads.has(turn.thread)) threads.set(turn.thread, threads.size);
      const parent = turnAt(turn.parent);
      const open = parent && tips.get(parent.index);
      if (open && (turn.kind === 'append' || turn.kind === 'retry')) {
        tips.delete(parent.index);
        open.last = row;
        open.rows.add(row);
        tips.set(turn.index, open);
        continue;
      }
      const source = turn.kind === 'rewound' && parent ? forkPoint(turn, parent) : parent || turnAt(turn.origin);
      const chain = {
        from: source && rowOf.has(source.index) ? rowOf.get(source.index) : -1,
        source,
        first: row,
        last: row,
        rows: new Set([row]),
        thread: threads.get(turn.thread),
        spawned: !parent,
        leg: turn.kind === 'summary_request',
      };
      chains.push(chain);
      tips.set(turn.index, chain);
    }
  });
  return strokes(rows, chains, most);
}

/** The newest call that a rewound context still holds whole. */
function forkPoint(turn, parent) {
  let at = parent;
  while (at && at.thread === turn.thread && at.depth > turn.prefix && turnAt(at.parent)) at = turnAt(at.parent);
  return at || parent;
}

function strokes(rows, chains, most) {
  const free = [];
  const cells = rows.map((turns) => ({ column: 0, strokes: [], thread: 0, aside: turns[0].aside }));
  const order = [...chains].sort((a, b) => start(a) - start(b) || a.leg - b.leg || a.first - b.first);
  for (const chain of order) {
    let column = free.findIndex((until) => until < start(chain));
    if (column < 0) column = free.length;
    if (column >= most) column = most - 1;
    free[column] = chain.last;
    chain.column = column;
  }
  for (const chain of chains) {
    for (const row of chain.rows) Object.assign(cells[row], { column: chain.column, thread: chain.thread });
  }
  for (const chain of chains) {
    const { column, thread } = chain;
    if (chain.from >= 0) {
      const dashed = chain.spawned || chain.leg;
      cells[chain.from].strokes.push(['curve', cells[chain.from].column, column, thread, dashed]);
      for (let row = chain.from + 1; row < chain.first; row++) cells[row].strokes.push(['full', column, 0, thread, dashed]);
      cells[chain.first].strokes.push(['top', column, 0, thread, dashed]);
    }
    for (let row = chain.first; row <= chain.last; row++) {
      const up = row > chain.first;
      const down = row < chain.last;
      if (up && down) cells[row].strokes.push(['full', column, 0, thread, false]);
      else if (up) cells[row].strokes.push(['top', column, 0, thread, false]);
      else if (down) cells[row].strokes.push(['bottom', column, 0, thread, false]);
    }
    const goesOn = chains.some((other) => other !== chain && other.thread === thread && other.first > chain.last);
    if (goesOn && !chain.leg) cells[chain.last].strokes.push(['end', column, 0, thread, false]);
  }
  const used = Math.min(most, Math.max(1, free.length));
  for (const cell of cells) if (cell.aside) cell.column = used;
  return { cells, columns: used + (cells.some((cell) => cell.aside) ? 1 : 0) };
}

const start = (chain) => (chain.from >= 0 ? chain.from : chain.first);
const middle = (column) => column * LANE + LANE / 2 + 4;

/** The picture of one row. */
function lanes(cell, turn, columns, height, folded) {
  const y = height / 2;
  const svg = s('svg', { class: 'lanes', width: columns * LANE + 8, height, 'aria-hidden': 'true' });
  for (const [shape, column, other, thread, dashed] of cell.strokes) {
    const x = middle(column);
    const path = {
      full: `M${x} 0V${height}`,
      top: `M${x} 0V${y}`,
      bottom: `M${x} ${y}V${height}`,
      end: `M${x} ${y}V${height - 6}M${x - 3.5} ${height - 6}h7`,
      curve: across(x, middle(other), y, height),
    }[shape];
    svg.append(s('path', { class: `lane lane${thread % 6}${dashed ? ' dashed' : ''}`, d: path }));
  }
  svg.append(glyph(family(turn), middle(cell.column), y, folded));
  return svg;
}

/** Each family has a shape of its own, so that colour is never the only sign. */
function glyph(name, x, y, folded) {
  const shape = {
    root: () => [s('circle', { cx: x, cy: y, r: 5.5 }), s('circle', { class: 'hole', cx: x, cy: y, r: 2 })],
    grow: () => (folded ? [s('path', { d: `M${x - 3} ${y - 5}h6v10h-6z` })] : [s('circle', { cx: x, cy: y, r: 3.5 })]),
    summary: () => [s('path', { d: `M${x} ${y - 6.5}L${x + 6.5} ${y}L${x} ${y + 6.5}L${x - 6.5} ${y}z` })],
    away: () => [
      s('path', { d: `M${x - 5} ${y - 5}h10v10h-10z` }),
      s('path', { class: 'cut', d: `M${x - 2.5} ${y}h5` }),
    ],
    back: () => [s('path', { d: `M${x + 4.5} ${y - 5.5}v11L${x - 5.5} ${y}z` })],
    head: () => [s('path', { d: `M${x - 6} ${y}l3 -5.2h6l3 5.2l-3 5.2h-6z` })],
    reminder: () => [s('path', { d: `M${x - 5} ${y + 4.5}h10L${x} ${y - 5.5}z` })],
    unknown: () => [
      s('path', { d: `M${x - 5.5} ${y - 5.5}h11v11h-11z` }),
      s('path', { class: 'cut', d: `M${x - 2} ${y - 2}q2 -2.5 4 0q0 1.5 -2 2.4M${x} ${y + 3}v.4` }),
    ],
    aside: () => [s('circle', { class: 'hollow', cx: x, cy: y, r: 3 })],
  }[name];
  return s('g', { class: `glyph k-${name}` }, shape());
}

/** From a dot sideways, then down. */
function across(x, to, y, height) {
  if (x === to) return `M${x} ${y}V${height}`;
  const bend = Math.sign(to - x) * 7;
  return `M${x} ${y}H${to - bend}Q${to} ${y} ${to} ${y + 7}V${height}`;
}

/** The same shape beside a word. */
function badge(turn) {
  return s('svg', { class: 'badge', width: 16, height: 16, 'aria-hidden': 'true' }, glyph(family(turn), 8, 8, false));
}
