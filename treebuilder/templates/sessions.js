// What there is: a list of sessions, and the numbers of one.

function sessionCard(session) {
  const turns = turnsOf(session.id);
  const edits = turns.filter(isEdit).length;
  const first = turns.find((turn) => turn.at);
  return h(
    'a',
    {
      class: 'card',
      href: '#session=' + encodeURIComponent(session.id),
    },
    h('span', { class: 'name' }, session.id),
    h('span', { class: 'quiet' }, [count(turns.length, 'call'), edits && count(edits, 'edit')].filter(Boolean).join(' · ')),
    h('span', { class: 'quiet' }, [session.harness, first && soon(first.at)].filter(Boolean).join(' · ')),
  );
}

function statisticsElement(session) {
  const n = session.statistics;
  const away = Object.entries(n.evicted_chars || {}).sort(([, a], [, b]) => b - a);
  const most = away.length ? away[0][1] : 1;
  const sum = away.reduce((total, [, chars]) => total + chars, 0);
  const figure = (value, name, explain) =>
    h('div', { class: 'figure' }, h('b', {}, value), h('span', {}, h('strong', {}, name), h('span', { class: 'quiet' }, explain)));
  return [
    h('h2', {}, 'This session', turnsOf(session.id).length > n.calls && h('span', { class: 'quiet asof' }, ` as of ${count(n.calls, 'call')}`)),
    h(
      'div',
      { class: 'figures' },
      figure(whole(n.calls), n.calls === 1 ? 'call' : 'calls', 'every request, helper calls included'),
      figure(whole(n.threads), n.threads === 1 ? 'thread' : 'threads', 'main line and agents'),
      figure(whole(n.branches), n.branches === 1 ? 'branch' : 'branches', 'contexts that only grew; training sees each as a row'),
      figure(amount(sum), 'characters evicted', 'what left the context again, of all that ever stood in it'),
      figure(percent(n.compression_depth), 'compression depth', 'mean evicted share of the threads that lost anything'),
      figure(percent(n.compression_frequency), 'compression frequency', 'share of threads that lost anything'),
      figure(percent(n.lost_share), 'lost', `of what was sampled is not in the final transcript (${n.replies_lost} of ${count(n.replies, 'reply', 'replies')})`),
      figure(percent(n.shifted_share), 'shifted', `of what was sampled stands there behind another context than it was sampled in (${n.replies_shifted} of ${count(n.replies, 'reply', 'replies')})`),
    ),
    away.length > 0 && h('h3', { class: 'section' }, 'Evicted, by kind'),
    h(
      'div',
      { class: 'bars' },
      away.map(([kind, chars]) => [
        h('span', {}, words(kind)),
        s('svg', { class: 'wide', preserveAspectRatio: 'none', viewBox: '0 0 100 8', 'aria-hidden': 'true' },
          s('rect', { class: 'gone', width: Math.max(0.5, (chars / most) * 100), height: 8 })),
        h('span', { class: 'quiet' }, amount(chars) + (n.evicted_tokens ? `, about ${amount(n.evicted_tokens[kind])} tokens` : '')),
      ]),
    ),
    h('p', { class: 'note' }, 'Choose a call to see the context that the model had. ', h('kbd', {}, '?'), ' lists the keys.'),
  ];
}
