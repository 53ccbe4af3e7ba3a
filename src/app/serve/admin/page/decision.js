// SPDX-License-Identifier: Apache-2.0
// A request's decision as a picture, and the latest ones as a list.
import {bar, h, icon} from './dom.js';
import {TERMS, cameTrue, count, ms, percent, rankName, reason, reasonInWords, some} from './words.js';

const LISTED = 12;
const clock = new Intl.DateTimeFormat('en', {hour: '2-digit', minute: '2-digit', second: '2-digit', hourCycle: 'h23'});

// ---- candidates ------------------------------------------------------------------------------------------

// Of the prompt: what the candidate has on which tier, what others are computing there, what it would compute itself.
function reuse(c, prompt, block) {
  const left = (() => {
    let room = prompt;
    return (blocks) => {
      const n = Math.min(Math.max(blocks, 0) * block, room);
      room -= n;
      return n;
    };
  })();
  const own = [
    ['device', left(c.device_blocks)],
    ['host', left(c.host_blocks)],
    ['disk', left(c.disk_blocks)],
    ['external', left(c.external_blocks)],
  ];
  return [...own, ['pending', left(c.pending_blocks - c.device_blocks - c.host_blocks - c.disk_blocks - c.external_blocks)]];
}

// given: the first leg gives what is not there.
function inWords(parts, prompt, given) {
  const cached = parts.slice(0, 4).reduce((n, [, v]) => n + v, 0),
    pending = parts[4][1],
    rest = prompt - cached - pending;
  return [
    cached ? `${given ? 'has' : 'reuses'} ${count(cached)} tokens` : `${given ? 'has' : 'reuses'} nothing`,
    pending ? `${count(pending)} are being computed there` : null,
    rest > 0 ? `${given ? 'is given' : 'computes'} ${count(rest)}` : null,
  ]
    .filter(Boolean)
    .join(', ');
}

function candidate(status, c, chosen, prompt, block, most, given) {
  const won = c.worker_id === chosen.worker_id && c.dp_rank === chosen.dp_rank;
  const parts = reuse(c, prompt, block),
    delays = c.first_ms != null;
  const terms = delays ? TERMS.map(([name], i) => [`term-${i + 1}`, c[name]]) : [['term-1', c.cost]];
  const cost = delays ? ms(c.cost) : c.cost.toFixed(1);
  return h(
    'li',
    {class: won ? 'candidate won' : 'candidate'},
    h(
      'p',
      {class: 'who'},
      won && icon('won'),
      h('b', null, rankName(status, c.worker_id, c.dp_rank)),
      won && h('span', {class: 'chosen'}, 'chosen'),
    ),
    h(
      'div',
      {class: 'prompt'},
      bar(prompt, parts, `Prompt: ${inWords(parts, prompt, given)}`),
      h('p', null, inWords(parts, prompt, given)),
    ),
    h(
      'div',
      {class: 'cost'},
      bar(most, terms, `Cost ${cost}`),
      h(
        'p',
        null,
        h('b', null, cost),
        delays ? ` = ${TERMS.map(([name]) => Math.round(c[name] * 10) / 10).join(' + ')}` : '',
        `; ${some(c.active_requests, 'request')} there${c.active_prefill_tokens ? `, ${some(c.active_prefill_tokens, 'prompt token')} ahead` : ''}`,
      ),
    ),
  );
}

const swatch = (name, text) => h('li', null, h('i', {class: `swatch ${name}`}), text);

function legends(list) {
  const has = (f) => list.some((c) => f(c) > 0),
    delays = list[0].first_ms != null;
  return h(
    'div',
    {class: 'legends'},
    h(
      'ul',
      {'aria-label': 'Prompt bars'},
      swatch('device', 'cached on the device'),
      has((c) => c.host_blocks) && swatch('host', 'in host memory'),
      has((c) => c.disk_blocks) && swatch('disk', 'on disk'),
      has((c) => c.external_blocks) && swatch('external', 'in shared storage'),
      has((c) => c.pending_blocks - c.device_blocks) && swatch('pending', 'being computed there'),
      swatch('track', 'not there'),
    ),
    h(
      'ul',
      {'aria-label': 'Cost bars'},
      delays ? TERMS.map(([, word], i) => swatch(`term-${i + 1}`, word)) : swatch('term-1', 'cost in blocks'),
    ),
  );
}

// list: the cheapest candidates, cheapest first.
function lane(status, title, told, chosen, list, total, prompt, block, given) {
  const most = Math.max(...list.map((c) => c.cost), 1e-9);
  return h(
    'section',
    {class: 'lane', 'aria-label': title},
    h('h4', null, title),
    h('p', {class: 'told'}, told),
    h(
      'div',
      {class: 'heads', 'aria-hidden': 'true'},
      h('span', null, 'Candidate'),
      h('span', null, `Prompt of ${some(prompt, 'token')}`),
      h('span', null, 'Expected cost'),
    ),
    h(
      'ol',
      {class: 'candidates'},
      list.map((c) => candidate(status, c, chosen, prompt, block, most, given)),
    ),
    total > list.length && h('p', {class: 'told'}, `The cheapest ${list.length} of ${total} candidates.`),
  );
}

function margin(status, chosen, list) {
  const own = list.find((c) => c.worker_id === chosen.worker_id && c.dp_rank === chosen.dp_rank),
    other = list.find((c) => c !== own);
  if (!own || !other) return list.length === 1 ? 'There was no other candidate.' : '';
  const unit = own.first_ms != null ? ms : (v) => v.toFixed(1),
    more = other.cost - own.cost;
  if (more < 0) return `${rankName(status, other.worker_id, other.dp_rank)} was expected to cost ${unit(-more)} less.`;
  return `The next best, ${rankName(status, other.worker_id, other.dp_rank)}, was expected to cost ${unit(more)} more.`;
}

// ---- the picture -----------------------------------------------------------------------------------------

function facts(d) {
  const prompt = Math.max(d.isl_tokens, d.predicted_cached_tokens, d.actual_cached_tokens ?? 0, 1),
    a = d.actual_cached_tokens;
  const line = (word, v) =>
    h(
      'div',
      {class: 'pair'},
      h('span', null, word),
      bar(prompt, [['device', v ?? 0]], `${word}: ${v == null ? 'not told' : some(v, 'token')}`),
      h('b', null, v == null ? 'not told' : `${count(v)}, ${percent(v / prompt)}`),
    );
  return h(
    'section',
    {class: 'true', 'aria-label': 'What came true'},
    h('h4', null, 'What came true'),
    line('predicted', d.predicted_cached_tokens),
    line('found', a),
    h('p', null, cameTrue(d).join(' ')),
  );
}

const STAGED = {pulled: 'fetched by the decode worker', released: 'released', lease: 'left to its lease'};

function lanes(status, d, block) {
  const p = d.prefill;
  if (!p)
    return lane(
      status,
      'Who could have taken it',
      margin(status, d, d.candidates),
      d,
      d.candidates,
      d.candidates_total,
      d.isl_tokens,
      block,
    );
  return h(
    'div',
    {class: 'two'},
    lane(
      status,
      'First leg: the prompt is computed',
      `${rankName(status, p.worker_id, p.dp_rank)} took ${ms(p.ms)}${p.tries > 1 ? `, at the ${p.tries}. try` : ''}. ${margin(status, p, p.candidates)}`,
      p,
      p.candidates,
      p.candidates_total,
      d.isl_tokens,
      block,
    ),
    h(
      'p',
      {class: 'handoff'},
      h('b', null, 'Hand-off'),
      ` after ${ms(d.handoff_ms)}; first byte ${ms(d.kv_wait_ms)} later${d.protocol ? `, by ${d.protocol}` : ''}`,
      d.staged ? `. The computed prompt was ${STAGED[d.staged] ?? d.staged}.` : '.',
    ),
    lane(
      status,
      'Second leg: the answer is generated',
      `${rankName(status, d.worker_id, d.dp_rank)} went on from it. ${margin(status, d, d.candidates)}`,
      d,
      d.candidates,
      d.candidates_total,
      d.isl_tokens,
      block,
      true,
    ),
  );
}

export function picture(status, d) {
  const first = d.prefill ?? d,
    block = status.workers.find((w) => w.worker_id === first.worker_id)?.block_size ?? 16;
  const all = [...(d.prefill?.candidates ?? []), ...d.candidates];
  const name = d.prefill
    ? `${rankName(status, first.worker_id, first.dp_rank)} and ${rankName(status, d.worker_id, d.dp_rank).toLowerCase()}`
    : rankName(status, d.worker_id, d.dp_rank);
  return h(
    'article',
    {class: 'picture', 'aria-labelledby': 'picture-title', tabindex: -1, id: 'picture'},
    h(
      'div',
      {class: 'card-head'},
      h('h3', {id: 'picture-title'}, `${name} won`),
      h('button', {type: 'button', class: 'quiet', 'data-do': 'close-decision'}, 'Close'),
    ),
    h(
      'p',
      {class: 'where'},
      h('a', {href: `#request=${encodeURIComponent(d.request_id)}`}, d.request_id),
      [clock.format(d.at_ms), d.model && `${d.model}${d.fallback ? ` instead of ${d.asked_model}` : ''}`]
        .filter(Boolean)
        .map((text) => ` · ${text}`),
    ),
    h(
      'p',
      {class: 'told'},
      `Why: ${reasonInWords(d)}.`,
      d.regret_blocks >= 1
        ? ` Another worker had ${some(Math.round(d.regret_blocks), 'block')} more of the prompt, and was not worth the wait.`
        : '',
      d.why ? ` Legs: ${d.why}.` : '',
    ),
    all.length ? [lanes(status, d, block), legends(all)] : h('p', {class: 'told'}, 'No candidates were compared for it.'),
    facts(d),
  );
}

export const missing = (id, why) => h('p', {class: 'calm', role: 'alert'}, icon('note'), `Nothing is kept of "${id}": ${why}.`);

// ---- the list --------------------------------------------------------------------------------------------

function line(status, d, open) {
  const prompt = Math.max(d.isl_tokens, 1),
    cached = d.actual_cached_tokens ?? d.predicted_cached_tokens;
  const share = `${percent(cached / prompt)} cached`;
  return h(
    'li',
    {'data-key': d.request_id},
    h(
      'button',
      {
        type: 'button',
        class: 'line',
        'data-do': 'explain',
        'data-request': d.request_id,
        'aria-expanded': open === d.request_id ? 'true' : 'false',
      },
      h('span', {class: 'time'}, clock.format(d.at_ms)),
      h('span', {class: 'id'}, d.request_id),
      h(
        'span',
        {class: 'to'},
        d.prefill ? `Workers ${d.prefill.worker_id} → ${d.worker_id}` : rankName(status, d.worker_id, d.dp_rank),
        ' ',
        h('em', null, reason(d)),
      ),
      h('span', {class: 'hit'}, bar(prompt, [['device', cached]], share), h('span', null, share)),
      h(
        'span',
        {class: d.status === 200 ? 'ms' : 'ms failed'},
        d.status === 200 ? (d.ttft_ms > 0 ? ms(d.ttft_ms) : '–') : `status ${d.status}`,
      ),
    ),
  );
}

export function recent(status, decisions, open, held) {
  if (!decisions.length) return h('p', {class: 'calm'}, 'No request has been decided yet.');
  return [
    h(
      'p',
      {class: 'hint', 'data-key': 'hint'},
      held ? 'The list stands still while you look at it.' : 'The latest requests. Choose one to see how its worker was chosen.',
    ),
    h(
      'ul',
      {class: 'lines', 'data-key': 'lines'},
      decisions.slice(0, LISTED).map((d) => line(status, d, open)),
    ),
  ];
}
