// SPDX-License-Identifier: Apache-2.0
// Each worker a card.
import {badge, bar, h, icon} from './dom.js';
import {cache, count, fits, host, inOrder, knowledge, load, pace, percent, rate, slowness, some, span, standing} from './words.js';

const CARDS_MAX = 60;

function badges(w) {
  const s = standing(w),
    k = knowledge(w);
  return h(
    'p',
    {class: 'badges'},
    badge(s.tone, s.icon, s.word),
    k?.blind && badge('warn', 'blind', 'Blind'),
    k?.word === 'partial' && badge('warn', 'blind', 'Known in part'),
    slowness(w) > 0 && badge('warn', 'slow', 'Slow'),
  );
}

const TIERS = [
  ['host_pinned', 'host memory'],
  ['disk', 'disk'],
  ['external', 'shared storage'],
];

function cacheRow(w) {
  const c = cache(w),
    k = knowledge(w),
    all = c.room + c.behind;
  const behind = TIERS.filter(([name]) => c[name])
    .map(([name, word]) => `${count(c[name])} in ${word}`)
    .join(', ');
  const amount = k?.blind ? 'not told' : c.room ? `${count(c.device)} of ${count(c.room)} blocks` : some(c.device, 'block');
  const text = k
    ? `${k.fresh ? 'It is being read anew. ' : ''}${k.text}${k.word === 'whole' ? '' : ` ${k.why}`}`
    : 'Nobody tells what is cached; the router goes by where it has sent prompts.';
  return row(
    'Cache',
    amount,
    bar(
      all || c.device || 1,
      [
        ['device', c.device],
        ['host', c.host_pinned],
        ['disk', c.disk],
        ['external', c.external],
      ],
      `Cache: ${amount}`,
    ),
    text + (behind && !k?.blind ? ` ${behind} besides.` : ''),
  );
}

function loadRow(w, loads) {
  const l = load(w, loads);
  const usage = l.usage == null ? null : `${percent(l.usage)} of its KV memory in use`;
  return row(
    'Load',
    some(Math.max(l.requests, w.active_requests), 'request') + ' under way',
    bar(1, [['device', l.usage ?? 0]], usage ?? 'The engine does not tell how much of its memory is in use'),
    [
      l.prompt ? `${some(l.prompt, 'prompt token')} still to compute` : 'No prompt waits to be computed',
      usage,
      l.waiting ? `${some(l.waiting, 'request')} in the engine's own queue` : null,
    ]
      .filter(Boolean)
      .join(', ') + '.',
  );
}

const row = (name, amount, meter, text) =>
  h('div', {class: 'row'}, h('dt', null, name), h('dd', null, amount && h('b', null, amount), meter, h('p', null, text)));

// perSecond: null while it is not known.
function soFar(w, perSecond) {
  const answered = `${standing(w).since ?? ''}${count(w.requests)} answered, ${count(w.errors)} failed`;
  return [
    `${rate(perSecond)} a second`,
    w.last_error && w.status !== 'down'
      ? `${answered}. The last check that failed, ${span(w.last_error_s_ago)} ago: ${w.last_error}`
      : answered,
  ];
}

function ranks(w, loads) {
  if (w.data_parallel_size < 2) return null;
  return h(
    'details',
    {'data-key': 'ranks'},
    h('summary', null, `${w.data_parallel_size} ranks`),
    h(
      'ul',
      {class: 'ranks'},
      w.views.map((v) => {
        const l = loads.find((x) => x.worker_id === w.worker_id && x.dp_rank === v.dp_rank);
        return h(
          'li',
          null,
          `Rank ${v.dp_rank}: ${v.view} view, ${some(v.blocks, 'block')}, ${some(l?.active_requests ?? 0, 'request')}${v.reason ? `; ${v.reason}` : ''}`,
        );
      }),
    ),
  );
}

// What its engine says that does not fit; of a blind one that is in its cache's row.
function notes(w) {
  const all = [
    ...(knowledge(w)?.blind ? [] : (w.learnt?.notes ?? [])),
    ...(w.metrics_error ? [`its metrics cannot be read: ${w.metrics_error}`] : []),
  ];
  return (
    all.length > 0 &&
    h(
      'ul',
      {class: 'notes', 'data-key': 'notes'},
      all.map((text) => h('li', null, icon('note'), text)),
    )
  );
}

const ROLES = {prefill: 'computes prompts', decode: 'generates answers'};

function card(w, loads, perSecond) {
  const s = standing(w),
    drained = w.state === 'draining',
    id = `worker-${w.worker_id}`;
  return h(
    'li',
    {class: 'card', id, 'data-key': id, 'data-tone': s.tone, tabindex: -1},
    h('div', {class: 'card-head', 'data-key': 'head'}, h('h3', {id: `${id}-name`}, `Worker ${w.worker_id}`), badges(w)),
    h('p', {class: 'where'}, [host(w.endpoint), w.model_name || 'any model', ROLES[w.role]].filter(Boolean).join(' · ')),
    s.why && h('p', {class: 'why'}, s.why),
    h(
      'dl',
      {'data-key': 'figures'},
      cacheRow(w),
      loadRow(w, loads),
      row('Pace', pace(w)[0], null, pace(w)[1]),
      row('So far', soFar(w, perSecond)[0], null, soFar(w, perSecond)[1]),
    ),
    notes(w),
    ranks(w, loads),
    h(
      'p',
      {class: 'buttons', 'data-key': 'buttons'},
      h(
        'button',
        {type: 'button', 'data-do': drained ? 'resume' : 'drain', 'data-worker': w.worker_id, 'aria-describedby': `${id}-name`},
        drained ? 'Resume' : 'Drain',
      ),
      h(
        'button',
        {type: 'button', class: 'quiet', 'data-do': 'remove', 'data-worker': w.worker_id, 'aria-describedby': `${id}-name`},
        'Remove…',
      ),
    ),
  );
}

// speed: of a worker, requests a second.
export function cards(status, filter, order, speed) {
  const all = inOrder(
      status.workers.filter((w) => fits(w, filter)),
      status.loads,
      order,
    ),
    shown = all.slice(0, CARDS_MAX);
  if (!status.workers.length)
    return h('p', {class: 'calm'}, 'No worker is known. Start the router with --worker, with a discovery, or add one by POST /workers.');
  return [
    h(
      'ul',
      {class: 'cards', 'data-key': 'cards'},
      shown.map((w) => card(w, status.loads, speed(w))),
    ),
    !all.length && h('p', {class: 'calm', 'data-key': 'none'}, 'No worker is like that.'),
    all.length > shown.length &&
      h(
        'p',
        {class: 'calm', 'data-key': 'others'},
        `${some(all.length - shown.length, 'other worker')} not shown: type what you look for.`,
      ),
  ];
}
