// The size of the context over the calls of a session: it climbs, and falls where something was taken away.

const CHART = 64;

function makeChart({ select }) {
  const svg = s('svg', { class: 'chart', preserveAspectRatio: 'none', 'aria-hidden': 'true' });
  let shown = [];
  let width = 1;
  svg.addEventListener('click', (event) => {
    const box = svg.getBoundingClientRect();
    const at = Math.floor(((event.clientX - box.left) / box.width) * shown.length);
    const turn = shown[Math.max(0, Math.min(shown.length - 1, at))];
    if (turn) select(turn);
  });

  const cursor = s('path', { class: 'cursor' });

  function show(turns, chosen) {
    const now = Math.max(1, svg.clientWidth || 600);
    if (turns !== shown || now !== width) draw(turns, now);
    const at = chosen ? turns.indexOf(chosen) : -1;
    const x = ((at + 0.5) * width) / turns.length;
    cursor.setAttribute('d', at >= 0 ? `M${x.toFixed(1)} 0V${CHART}` : '');
  }

  function draw(turns, now) {
    shown = turns;
    width = now;
    const most = turns.reduce((max, turn) => (turn.aside || turn.lane === 'summary' ? max : Math.max(max, turn.chars)), 1);
    const step = width / Math.max(1, turns.length);
    const y = (chars) => CHART - 3 - (chars / most) * (CHART - 20);
    const areas = new Map();
    turns.forEach((turn, i) => {
      if (turn.aside || turn.lane === 'summary') return;
      if (!areas.has(turn.thread)) areas.set(turn.thread, []);
      areas.get(turn.thread).push([i, turn]);
    });
    const parts = [];
    let thread = 0;
    for (const some of areas.values()) {
      let line = '';
      some.forEach(([i, turn], k) => {
        const until = k + 1 < some.length ? some[k + 1][0] : i + 1;
        line += `${k ? 'L' : 'M'}${(i * step).toFixed(1)} ${y(turn.chars).toFixed(1)}H${(until * step).toFixed(1)}`;
      });
      const [from] = some[0];
      const base = CHART - 2;
      parts.push(
        s('path', { class: `area lane${thread % 6}`, d: `${line}V${base}H${(from * step).toFixed(1)}z` }),
        s('path', { class: `edge lane${thread % 6}`, d: line }),
      );
      thread += 1;
    }
    const ticks = turns.flatMap((turn, i) =>
      isEdit(turn) ? [s('path', { class: `tick k-${family(turn)}`, d: `M${((i + 0.5) * step).toFixed(1)} ${CHART - 7}v5` })] : [],
    );
    svg.setAttribute('viewBox', `0 0 ${width} ${CHART}`);
    const label = s('text', { class: 'most', x: 0, y: 10 }, turns.length ? `${amount(most)} characters` : '');
    svg.style.setProperty('--tick', Math.max(0.75, Math.min(2, step)) + 'px');
    svg.replaceChildren(...parts, ...ticks, cursor, label);
  }

  return { element: svg, show };
}
