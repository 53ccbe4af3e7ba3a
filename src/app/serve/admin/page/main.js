// SPDX-License-Identifier: Apache-2.0
// The page: what comes from the router is kept here and shown; what a reader does goes back to it.
import * as api from './api.js';
import {panels, read, spanOf} from './charts.js';
import {missing, picture, recent} from './decision.js';
import {h, show} from './dom.js';
import {head, look} from './fleet.js';
import {facts, take} from './more.js';
import {save} from './save.js';
import {ORDERS, headline} from './words.js';
import {cards} from './workers.js';

const $ = (id) => document.getElementById(id);
const page = {status: null, points: [], others: {}, filter: '', order: 'number', open: null, decisions: [], held: false, counts: []};
const SLOWLY_MS = 10000,
  SPEED_MS = 10000;

// ---- showing ---------------------------------------------------------------------------------------------

function link(tone, text) {
  $('link').dataset.tone = tone;
  $('link').textContent = text;
}

const listIsLookedAt = () => $('recent').matches(':hover') || $('recent').contains(document.activeElement);

// Requests a second of a worker, over the last ten seconds that this page has seen.
function speed(w) {
  const [first] = page.counts,
    ms = page.status.uptime_ms - first.at;
  return ms > 0 && first.of.has(w.worker_id) ? Math.max(Math.round((10000 * (w.requests - first.of.get(w.worker_id))) / ms) / 10, 0) : null;
}

function count(status) {
  page.counts.push({at: status.uptime_ms, of: new Map(status.workers.map((w) => [w.worker_id, w.requests]))});
  while (page.counts.length > 1 && status.uptime_ms - page.counts[1].at >= SPEED_MS) page.counts.shift();
}

const drawCards = () => page.status && show('cards', cards(page.status, page.filter, page.order, speed));

function draw() {
  const {status} = page;
  document.title = `${headline(status)} · ${location.host} · kvroute`;
  document.body.classList.add('read');
  show('head', head(status));
  show('findings', look(status));
  if (!document.querySelector('.plot:hover, .plot:focus')) show('panels', panels(status.recent, page.points));
  drawCards();
  const held = listIsLookedAt();
  if (!held) page.decisions = status.decisions;
  show('recent', recent(status, page.decisions, page.open, held));
  show('facts', facts(status, page.others));
  show('foot', `kvroute ${status.version} at ${location.host}`);
}

function onStatus(status, how) {
  if (page.status && page.status.version !== status.version) location.reload(); // its successor has a page of its own
  page.status = status;
  count(status);
  if (page.held) link('idle', 'Paused');
  else link('good', how === 'live' ? 'Live' : 'Every 2 s');
  document.body.classList.remove('stale');
  draw();
  slowly();
}

// What changes slowly, or costs more to ask for.
let slowAt = 0;
async function slowly() {
  if (Date.now() < slowAt) return;
  slowAt = Date.now() + SLOWLY_MS;
  try {
    const [history, config, keys, tokenizers, peers, options] = await Promise.all([
      api.get('history'),
      page.status.program === 'serve' ? api.get('models_config') : null,
      page.status.client_keys ? api.get('api_keys') : null,
      api.get('tokenizers'),
      api.get('replica_sync/peers'),
      api.get('options'),
    ]);
    page.points = history.points;
    page.others = {config, keys, tokenizers, peers, options};
    draw();
  } catch (e) {
    await onTrouble(e);
  }
}

// ---- questions to the reader ------------------------------------------------------------------------------

function ask({title, text, yes, key = false}) {
  const d = $('ask');
  if (d.open) return Promise.resolve(null);
  $('ask-title').textContent = title;
  $('ask-text').textContent = text;
  $('ask-yes').textContent = yes;
  $('ask-key-field').hidden = !key;
  $('ask-key').value = '';
  d.returnValue = 'no';
  d.showModal();
  (key ? $('ask-key') : $('ask-no')).focus();
  return new Promise((done) =>
    d.addEventListener('close', () => done(d.returnValue === 'yes' ? $('ask-key').value || true : null), {once: true}),
  );
}

const say = (text) => {
  $('said').textContent = text;
};

async function onTrouble(e) {
  if (e.status !== 401) {
    link('bad', 'No answer');
    document.body.classList.add('stale');
    document.title = 'No answer · kvroute';
    say(`No answer from the router: ${e.message}`);
    return;
  }
  link('idle', 'Key needed');
  if (!asking)
    asking = askForKey().finally(() => {
      asking = null;
    });
  await asking;
  slowAt = 0;
}

let asking = null;
// Ends with a key: who cancels has a button to be asked again.
async function askForKey() {
  for (;;) {
    const key = await ask({
      title: 'This router asks for a key',
      yes: 'Use it',
      key: true,
      text: `${api.hasKey() ? 'The key was not right. ' : ''}It is a line of the file that --admin-key-file names. It stays in this tab, and is forgotten with it.`,
    });
    $('use-key').hidden = typeof key === 'string';
    if (typeof key === 'string') {
      api.setKey(key);
      $('forget-key').hidden = false;
      return;
    }
    await new Promise((done) => $('use-key').addEventListener('click', done, {once: true}));
  }
}

// ---- what a reader does -------------------------------------------------------------------------------------

async function act(what, done) {
  try {
    await what();
    say(done);
    if (page.status) onStatus(await api.get('status'), $('link').textContent === 'Live' ? 'live' : 'polled');
  } catch (e) {
    if (e.status === 401) await onTrouble(e);
    else await ask({title: 'That did not work', text: e.message, yes: 'Close'});
  }
}

async function explain(id) {
  page.open = id;
  history.replaceState(null, '', `#request=${encodeURIComponent(id)}`);
  try {
    const d = await api.getIfThere(`decisions?id=${encodeURIComponent(id)}`);
    show('decision', d ? picture(page.status, d) : missing(id, 'the router keeps the last 10,000 decisions, since its start'));
    $('picture')?.focus();
  } catch (e) {
    await onTrouble(e);
  }
}

// What the address names: a request, some of the workers in an order, or one of them.
function goTo() {
  const asked = new URLSearchParams(location.hash.slice(1)),
    one = /^#worker-(\d+)$/.exec(location.hash);
  if (asked.has('request')) explain(asked.get('request'));
  if (one && !document.querySelector(location.hash)) asked.set('show', `worker ${one[1]}`); // more are there than are shown
  if (!asked.has('show') && !asked.has('order')) return;
  page.filter = $('filter').value = asked.get('show') ?? '';
  page.order = $('order').value = asked.get('order') in ORDERS ? asked.get('order') : 'number';
  drawCards();
}

function choose() {
  page.filter = $('filter').value.trim();
  page.order = $('order').value;
  const asked = new URLSearchParams();
  if (page.filter) asked.set('show', page.filter);
  if (page.order !== 'number') asked.set('order', page.order);
  history.replaceState(null, '', `#${asked}`);
  drawCards();
}

const THEMES = ['auto', 'light', 'dark'];
function theme(name) {
  if (name === 'auto') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  localStorage.setItem('kvroute-theme', name);
  $('theme').textContent = `Theme: ${name}`;
}

const actions = {
  theme: () => theme(THEMES[(THEMES.indexOf(localStorage.getItem('kvroute-theme') ?? 'auto') + 1) % 3]),
  hold: (button) => {
    page.held = !page.held;
    api.hold(page.held);
    button.textContent = page.held ? 'Go on' : 'Pause';
    link('idle', page.held ? 'Paused' : 'Connecting');
  },
  save: ({dataset: {file}}) => act(() => save(file), `${file} is saved.`),
  'forget-key': () => {
    api.setKey(null);
    location.reload();
  },
  drain: ({dataset: {worker}}) => act(() => api.setWorkerState(worker, 'draining'), `Worker ${worker} gets nothing new from now on.`),
  resume: ({dataset: {worker}}) => act(() => api.setWorkerState(worker, 'active'), `Worker ${worker} gets requests again.`),
  remove: async ({dataset: {worker}}) => {
    const yes = await ask({
      title: `Remove worker ${worker}?`,
      yes: 'Remove',
      text: 'It gets no more requests, and what is known of its cache is forgotten. What it has begun it finishes. To have it back it must be added, or found, again.',
    });
    if (yes) await act(() => api.removeWorker(worker), `Worker ${worker} is removed.`);
  },
  cancel: () => $('ask').close('no'),
  explain: ({dataset: {request}}) => explain(request),
  'close-decision': () => {
    page.open = null;
    show('decision');
    location.replace('#decisions');
  },
};

document.addEventListener('click', (e) => {
  const b = e.target.closest('[data-do]');
  if (b) actions[b.dataset.do](b);
});
$('search').addEventListener('submit', (e) => {
  e.preventDefault();
  if ($('request').value.trim()) explain($('request').value.trim());
});
$('filter').addEventListener('input', choose);
$('order').addEventListener('change', choose);
addEventListener('hashchange', goTo);

// ---- reading a chart ----------------------------------------------------------------------------------------

const STEP = 1 / 360;
let place = 1;
function point(figure, share) {
  place = share == null ? 1 : Math.min(Math.max(share, 0), 1);
  if (figure && page.points.length) read(figure, page.points, spanOf(page.points, page.status.recent.at_ms), share == null ? null : place);
}
$('panels').addEventListener('pointermove', (e) => {
  const figure = e.target.closest('.plot');
  if (!figure) return;
  const box = figure.querySelector('svg').getBoundingClientRect();
  point(figure, (e.clientX - box.left) / box.width);
});
$('panels').addEventListener('pointerout', (e) => point(e.target.closest('.plot'), null));
$('panels').addEventListener('focusout', (e) => point(e.target.closest('.plot'), null));
$('panels').addEventListener('keydown', (e) => {
  const figure = e.target.closest('.plot'),
    by = {ArrowLeft: -6, ArrowRight: 6, PageUp: -60, PageDown: 60, Home: -360, End: 360}[e.key];
  if (!figure || !by) return;
  e.preventDefault();
  point(figure, place + by * STEP);
});

theme(localStorage.getItem('kvroute-theme') ?? 'auto');
$('forget-key').hidden = !api.hasKey();
show(
  'order',
  Object.entries(ORDERS).map(([name, [words]]) => h('option', {value: name}, words)),
);
show('take', take());
api.follow((status, how) => {
  if (page.held) return;
  const first = !page.status;
  onStatus(status, how);
  if (!first) return;
  goTo();
  if (location.hash.startsWith('#worker-')) location.replace(location.hash); // it was not there when the page was opened
}, onTrouble);
