// SPDX-License-Identifier: Apache-2.0
// What figures mean, in words for somebody who sees them for the first time. No DOM: pure functions of what /status says.

const whole = new Intl.NumberFormat('en');
const three = new Intl.NumberFormat('en', {maximumSignificantDigits: 3});
const few = new Intl.NumberFormat('en', {maximumSignificantDigits: 2});

export const count = (n) => (n == null ? '–' : whole.format(Math.round(n)));
export const some = (n, one, many = one + 's') => `${count(n)} ${n === 1 ? one : many}`;
export const percent = (share) => (share == null ? '–' : `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`);
export const rate = (n) => (n == null ? '–' : n >= 100 ? count(n) : three.format(n));

export function ms(v) {
  if (v == null) return '–';
  if (v < 10) return `${v ? few.format(v) : 0} ms`;
  return v < 1000 ? `${Math.round(v)} ms` : v < 60000 ? `${Number((v / 1000).toFixed(v < 10000 ? 2 : 1))} s` : span(v / 1000);
}

export function span(seconds) {
  const s = Math.round(seconds),
    m = Math.floor(s / 60),
    hours = Math.floor(m / 60),
    days = Math.floor(hours / 24);
  if (s < 60) return some(s, 'second');
  if (m < 60) return `${m} min`;
  return hours < 24 ? `${hours} h ${m % 60} min` : `${some(days, 'day')} ${hours % 24} h`;
}

export const host = (endpoint) => endpoint.replace(/^https?:\/\//, '') || 'no address';
export const rankName = (status, id, rank) =>
  `Worker ${id}${(status?.workers.find((w) => w.worker_id === id)?.data_parallel_size ?? 1) > 1 ? `, rank ${rank}` : ''}`;

// ---- a worker --------------------------------------------------------------------------------------------

// How long it has stood as it stands.
const lasting = (w, word) => (w.since_s > 0 ? `${word} for ${span(w.since_s)}. ` : '');

// Does it get requests? {tone, icon, word, why}
export function standing(w) {
  if (w.state === 'draining')
    return {
      tone: 'idle',
      icon: 'idle',
      word: 'Drained',
      why: `${lasting(w, 'Drained')}It finishes what it has begun and gets nothing new, because somebody asked for that.`,
    };
  if (w.breaker_open)
    return {
      tone: 'bad',
      icon: 'bad',
      word: 'Paused after failures',
      is: 'is paused after failures',
      why: 'Too many requests in a row have failed there. It is tried again in a moment.',
    };
  if (w.status === 'down')
    return {
      tone: 'bad',
      icon: 'bad',
      word: 'Down',
      is: 'is down',
      why: `${lasting(w, 'Down')}Its last health check failed${w.last_error ? `: ${w.last_error}` : ''}.`,
    };
  if (!w.schedulable)
    return {
      tone: 'warn',
      icon: 'warn',
      word: 'Gets no requests',
      is: 'gets no requests',
      why: sentence(w.why_not_schedulable ?? 'it has not been found up yet'),
    };
  return {tone: 'good', icon: 'good', word: 'Takes requests', since: lasting(w, 'Up'), why: ''};
}

const KNOWLEDGE = {
  whole: {tone: 'good', word: 'whole', text: 'The router knows every block that is cached here.'},
  partial: {tone: 'warn', word: 'partial', text: 'The router knows a part of what is cached here.'},
  unknown: {tone: 'warn', word: 'unknown', text: 'The router does not know what is cached here, so requests come by load alone.'},
};

const sentence = (text) => (text ? text[0].toUpperCase() + text.slice(1).replace(/\.$/, '') + '.' : '');

// What the router knows of its cache: that of its worst rank. null: nobody tells of caches, the router goes by its own choices.
export function knowledge(w) {
  const rank = (v) => ['unknown', 'partial', 'whole'].indexOf(v.view);
  const worst = [...w.views].sort((a, b) => rank(a) - rank(b))[0];
  if (!worst) return null;
  const why = [worst.reason, worst.events_error, worst.replay_error].filter(Boolean).map(sentence).join(' ');
  return {
    ...KNOWLEDGE[worst.view],
    why,
    blind: worst.view === 'unknown' && w.status !== 'down',
    fresh: worst.state === 'restoring',
    advice: sentence((w.learnt?.notes ?? [])[0]),
  };
}

const SLOW = 1.5,
  SLOW_SEEN = 10;
export const slowness = (w) =>
  w.ttft_model && w.ttft_model.observations >= SLOW_SEEN && w.ttft_model.factor >= SLOW ? w.ttft_model.factor : 0;
const times = (factor) => `${factor.toFixed(1)} times`;

// The latency model of the fleet and the worker's own factor: [in short, in full]
export function pace(w) {
  const m = w.ttft_model,
    g = w.generation_model;
  if (!m || !m.observations) return ['not known yet', 'It has answered no streamed request.'];
  const first = m.factor * m.base_ms,
    thousand = m.factor * m.token_ms * 1000;
  const than =
    m.factor >= 1.15
      ? `${times(m.factor)} as long as this fleet’s usual`
      : m.factor <= 0.87
        ? `${times(m.factor)} this fleet’s usual: quick`
        : 'as usual in this fleet';
  return [
    `${ms(first + thousand)} to the first token`,
    `Of a new prompt of 1,000 tokens; ${ms(first)} when they are cached. ${sentence(than)}` +
      (g && g.observations ? ` Then a token every ${ms(g.base_ms)}.` : ''),
  ];
}

export function cache(w) {
  const tiers = {device: 0, host_pinned: 0, disk: 0, external: 0};
  for (const v of w.views) {
    tiers.device += v.blocks ?? 0;
    for (const [name, t] of Object.entries(v.tiers ?? {})) tiers[name] += t.blocks;
  }
  const room = (w.total_kv_blocks ?? 0) * w.data_parallel_size;
  return {...tiers, room, behind: tiers.host_pinned + tiers.disk + tiers.external};
}

export function load(w, loads) {
  const mine = loads.filter((l) => l.worker_id === w.worker_id),
    sum = (f) => mine.reduce((n, l) => n + (f(l) ?? 0), 0);
  const told = mine.filter((l) => l.engine && !l.engine.stale);
  return {
    requests: sum((l) => l.active_requests),
    prompt: sum((l) => l.active_prefill_tokens),
    blocks: sum((l) => l.active_decode_blocks),
    usage: told.length ? told.reduce((n, l) => n + (l.engine.kv_usage ?? 0), 0) / told.length : null,
    waiting: told.length ? told.reduce((n, l) => n + (l.engine.waiting ?? 0), 0) : null,
  };
}

// Orders of the cards: what is highest comes first, and in the order of numbers where that is the same.
const GRAVITY = {bad: 3, warn: 2, idle: 1, good: 0};
export const ORDERS = {
  number: ['by number', () => 0],
  gravest: ['gravest first', (w) => 2 * GRAVITY[standing(w).tone] + (knowledge(w)?.tone === 'warn' || slowness(w) > 0 ? 1 : 0)],
  busiest: ['busiest first', (w, loads) => Math.max(load(w, loads).requests, w.active_requests)],
  slowest: ['slowest first', (w) => w.ttft_model?.factor ?? 0],
  failed: ['most failures first', (w) => w.errors],
};

export function inOrder(workers, loads, order) {
  const of = new Map(workers.map((w) => [w, (ORDERS[order] ?? ORDERS.number)[1](w, loads)]));
  return [...workers].sort((a, b) => of.get(b) - of.get(a));
}

// ---- the fleet -------------------------------------------------------------------------------------------

export function headline(status) {
  const all = status.workers.length,
    up = status.workers.filter((w) => w.schedulable).length;
  if (status.ending) return 'The router is shutting down';
  if (!all) return 'There is no worker yet';
  if (up === all) return all === 1 ? 'The worker takes requests' : `All ${count(all)} workers take requests`;
  return up ? `${count(up)} of ${count(all)} workers ${up === 1 ? 'takes' : 'take'} requests` : 'No worker takes requests';
}

const DAY_MS = 86400e3,
  CERTIFICATE_DAYS = 14;

// When a certificate ends, in words; soon: somebody should renew it.
export function ending(c, now) {
  const left = c.ends_at_ms - now;
  return {
    soon: left < CERTIFICATE_DAYS * DAY_MS,
    over: left <= 0,
    text: left <= 0 ? 'has ended' : `ends in ${left < DAY_MS ? span(left / 1000) : some(Math.floor(left / DAY_MS), 'day')}`,
  };
}

const FAILURES = {
  error_answered: 'answered by a worker with an error',
  broken: 'broken off',
  failed: 'failed on every worker tried',
  refused: 'refused here',
  client_gone: 'left by their client',
};
// Of a point: requests by how they ended; refused ones and clients that left are no errors of ours.
export function failures(p) {
  const all = Object.entries(p.failures).map(([how, n]) => `${count(n)} ${FAILURES[how] ?? how}`);
  return all.length ? `Without a whole answer: ${all.join(', ')}` : '';
}

const FINDINGS_EACH = 3; // of one kind, by name; the others are counted

// What somebody should look at, the gravest first: {tone, icon, title, text, worker}
export function findings(status) {
  const kinds = {down: [], blind: [], partial: [], slow: [], drained: []},
    out = [];
  for (const w of status.workers) {
    const s = standing(w),
      k = knowledge(w),
      slow = slowness(w),
      name = `Worker ${w.worker_id}`,
      one = {worker: w.worker_id};
    if (w.state === 'draining') kinds.drained.push({...one, tone: s.tone, icon: s.icon, title: `${name} is drained`, text: s.why});
    else if (!w.schedulable) kinds.down.push({...one, tone: s.tone, icon: s.icon, title: `${name} ${s.is}`, text: s.why});
    if (k?.blind && w.schedulable)
      kinds.blind.push({
        ...one,
        tone: 'warn',
        icon: 'blind',
        title: `${name} is blind`,
        text: `It does not tell what it has cached, so requests go there by load and not by cache. ${k.advice || k.why}`,
      });
    else if (k && k.word === 'partial' && w.schedulable)
      kinds.partial.push({...one, tone: 'warn', icon: 'blind', title: `${name} is known in part`, text: `${k.text} ${k.why}`});
    if (slow)
      kinds.slow.push({
        ...one,
        tone: 'warn',
        icon: 'slow',
        title: `${name} is slow`,
        text: `Its first tokens take ${times(slow)} as long as this fleet’s usual. The router sends it less for that.`,
      });
  }
  if (status.remote_index_error)
    out.push({tone: 'bad', icon: 'bad', title: 'The index elsewhere is not used', text: sentence(status.remote_index_error)});
  for (const c of status.certificates ?? []) {
    const {soon, over, text} = ending(c, status.recent.at_ms);
    if (soon)
      out.push({
        tone: over ? 'bad' : 'warn',
        icon: over ? 'bad' : 'warn',
        title: `The certificate of the ${c.port} port ${text}`,
        text: 'Put a new one in its place, and send SIGHUP or POST /reload: no connection is closed for it.',
      });
  }
  const waiting = status.recent?.waiting ?? 0;
  const queue = waiting > 0 && {
    tone: 'warn',
    icon: 'queue',
    title: `A queue: ${some(waiting, 'request')} ${waiting === 1 ? 'waits' : 'wait'} for a worker`,
    text: 'No worker may take more now. They are sent as soon as one has room; if a queue stays, the fleet is too small for its load.',
  };
  for (const [kind, list] of Object.entries(kinds)) {
    if (kind === 'blind' && queue) out.push(queue);
    out.push(...list.slice(0, FINDINGS_EACH));
    const left = list.length - FINDINGS_EACH;
    if (left > 0) out.push({...list[0], worker: undefined, title: `${some(left, 'more worker')} like this`, text: ''});
  }
  const advice = status.last_minute?.advice;
  if (advice)
    out.push({
      tone: 'note',
      icon: 'note',
      title: 'What the choices of the last minute say',
      text: sentence(advice.replace(/^choices of the last minute: ([\d,]+); /, 'of $1, ')),
    });
  return out;
}

// Does the worker fit what somebody has typed?
export function fits(w, text) {
  const k = knowledge(w),
    words = [
      `worker ${w.worker_id}`,
      w.endpoint,
      w.model_name,
      w.role,
      w.routing_group,
      standing(w).word,
      k?.blind ? 'blind' : '',
      k?.word ?? '',
      slowness(w) ? 'slow' : '',
    ]
      .join(' ')
      .toLowerCase();
  return text
    .toLowerCase()
    .split(/\s+/)
    .every((t) => words.includes(t));
}

// ---- a decision ------------------------------------------------------------------------------------------

const REASONS = {
  kv: ['by cache', 'it has the most useful part of the prompt cached, at the least expected delay'],
  pending: ['by cache to be', 'requests ahead of it are computing the beginning of this prompt there'],
  load: ['by load', 'no cached prefix made up for a longer wait, so the least busy worker was taken'],
  pinned: ['pinned', 'the request named the worker itself'],
  session: ['by session', 'its session is bound to this worker'],
  local: ['kept local', 'the prompt is best computed where the answer is generated'],
  untrusted: ['cache unknown', 'what the worker has cached is not known, so it was chosen by load'],
  'load-tokenize-failed': ['by load', 'the prompt could not be made into tokens, so nothing was known of its cache'],
  'load-multimodal': ['by load', 'the place of a part that is not text is not known, so nothing was known of its cache'],
  'index-unavailable': ['no index', 'the index elsewhere did not answer, so it was chosen by load'],
  'index-partial': ['part of the index', 'only a part of the index elsewhere has answered'],
  'round-robin': ['in turn', 'the mode is round-robin: each worker in its turn'],
  random: ['at random', 'the mode is random'],
  'least-loaded': ['least loaded', 'the mode is least-loaded'],
};
export const reason = (d) => REASONS[d.reason]?.[0] ?? d.reason;
export const reasonInWords = (d) =>
  d.reason === 'load' && !d.best_overlap_blocks
    ? 'nothing of its prompt is cached where it could go, so the least busy worker was taken'
    : (REASONS[d.reason]?.[1] ?? `the reason is "${d.reason}"`);

export const TERMS = [
  ['first_ms', 'its own first token'],
  ['computing_ms', 'others wait while its prompt is computed'],
  ['generation_ms', 'its generation and that of the others'],
  ['pass_ms', 'holding up running answers'],
];

// What came of the prediction, and of the time: sentences.
export function cameTrue(d) {
  const out = [],
    p = d.predicted_cached_tokens,
    a = d.actual_cached_tokens;
  if (a == null) out.push(`${some(p, 'cached token')} predicted; the engine did not tell how many there were.`);
  else if (p === a) out.push(`${some(p, 'cached token')} predicted, and so it was.`);
  else if (d.pending_blocks && a > p)
    out.push(`${count(p)} cached tokens predicted, ${count(a)} found: requests ahead had computed more by then.`);
  else out.push(`${count(p)} cached tokens predicted, ${count(a)} found: ${a > p ? `${count(a - p)} more` : `${count(p - a)} missing`}.`);
  if (d.queued_ms >= 1) out.push(`It waited ${ms(d.queued_ms)} in the queue.`);
  if (d.ttft_ms > 0) {
    out.push(`Its first token came after ${ms(d.ttft_ms)}.`);
    if (d.other_ttft_ms != null) {
      const more = d.ttft_ms - d.other_ttft_ms;
      out.push(
        Math.abs(more) < 1
          ? 'The best other worker would have taken as long.'
          : `The best other worker would have taken about ${ms(d.other_ttft_ms)}: ${ms(Math.abs(more))} ${more > 0 ? 'less' : 'more'}.`,
      );
    }
  }
  if (d.status !== 200) out.push(`It ended with status ${d.status}.`);
  return out;
}
