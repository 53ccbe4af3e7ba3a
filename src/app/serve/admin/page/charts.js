// SPDX-License-Identifier: Apache-2.0
// Panels: a figure and its last hour. A line is drawn in a square of 1000 by 100 that the browser stretches, so nothing is measured and
// nothing moves when it comes; words stand beside it as text. A library of charts would bring ten times as much, and a canvas that is read
// by nobody who does not see.
import {badge, h} from './dom.js';
import {count, failures, ms, percent, rate} from './words.js';

const GAP = 25e3;
const SPANS = [5, 15, 30, 60]; // minutes: a router that has just begun fills a shorter one
const clock = new Intl.DateTimeFormat('en', {hour: '2-digit', minute: '2-digit', hourCycle: 'h23'});

// The smallest round number that is not below v.
function roundUp(v) {
  const ten = 10 ** Math.floor(Math.log10(v));
  return [1, 2, 5, 10].map((x) => x * ten).find((x) => x >= v * 0.999);
}

export function spanOf(points, now) {
  const age = points.length ? (now - points[0].at_ms) / 60e3 : 0;
  return {now, minutes: SPANS.find((m) => m >= age - 0.5) ?? SPANS.at(-1)};
}

const x = (span, at) => 1000 * (1 - (span.now - at) / (60e3 * span.minutes));

// Pieces of a line: none goes over a time of which nothing is known.
function pieces(points, span, top, value) {
  const out = [];
  let last = -Infinity;
  for (const p of points) {
    const v = value(p),
      at = x(span, p.at_ms);
    if (v == null || at < 0) continue;
    if (p.at_ms - last > GAP) out.push([]);
    out[out.length - 1].push(`${at.toFixed(1)},${(100 - 100 * Math.min(v / top, 1)).toFixed(2)}`);
    last = p.at_ms;
  }
  return out;
}

const lines = (all, name) =>
  all.map((p) => (p.length > 1 ? h('polyline', {class: name, points: p.join(' ')}) : h('path', {class: `${name} dot`, d: `M${p[0]}h.01`})));
const area = (all) =>
  all
    .filter((p) => p.length > 1)
    .map((p) => h('path', {class: 'area', d: `M${p[0].split(',')[0]},100L${p.join('L')}L${p.at(-1).split(',')[0]},100z`}));

function bars(points, span, top, value) {
  return points
    .filter((p) => value(p) > 0 && x(span, p.at_ms) >= 0)
    .map((p) => {
      const height = Math.max((100 * value(p)) / top, 3);
      return h('rect', {
        class: 'bar-bad',
        x: (x(span, p.at_ms) - 3).toFixed(1),
        y: (100 - height).toFixed(2),
        width: 4,
        height: height.toFixed(2),
      });
    });
}

function plot(panel, points, span) {
  const values = points.flatMap((p) => panel.series.map((s) => s.value(p))).filter((v) => v != null);
  const top = panel.top ?? roundUp(Math.max(panel.least, ...values));
  const drawn = panel.bars
    ? bars(points, span, top, panel.series[0].value)
    : panel.series.map((s, i) => {
        const all = pieces(points, span, top, s.value);
        return [i === 0 && area(all), lines(all, `line-${i + 1}`)];
      });
  return h(
    'figure',
    {
      class: 'plot',
      tabindex: 0,
      role: 'group',
      'data-panel': panel.id,
      'aria-label': `${panel.title}, the last ${span.minutes} minutes. Arrow keys read it.`,
    },
    h('span', {class: 'top', 'aria-hidden': 'true'}, panel.format(top)),
    h(
      'svg',
      {viewBox: '0 0 1000 100', preserveAspectRatio: 'none', 'aria-hidden': 'true'},
      h('path', {class: 'grid', d: 'M0,0H1000M0,50H1000M0,100H1000'}),
      ...drawn,
      h('line', {class: 'cursor', x1: 0, x2: 0, y1: 0, y2: 100, visibility: 'hidden'}),
    ),
    h('figcaption', {'aria-hidden': 'true'}, h('span', null, `${span.minutes} min ago`), h('span', null, 'now')),
  );
}

const perSecond = (p) => (p.seconds > 0 ? p.requests / p.seconds : null);

// The first series is the figure itself.
export const PANELS = [
  {
    id: 'hits',
    title: 'Cache hits',
    top: 1,
    wide: true,
    format: percent,
    least: 1,
    about: 'Of prompt tokens: what engines did not compute again',
    series: [
      {name: 'reported by engines', value: (p) => p.hit_rate},
      {name: 'predicted by the router', value: (p) => p.predicted_hit_rate},
    ],
  },
  {
    id: 'ttft',
    title: 'Time to first token',
    wide: true,
    format: ms,
    least: 10,
    about: 'From a request’s arrival to the first piece of a streamed answer',
    series: [
      {name: 'half are quicker (p50)', value: (p) => p.ttft_p50_ms},
      {name: '99 of 100 are quicker (p99)', value: (p) => p.ttft_p99_ms},
    ],
  },
  {
    id: 'requests',
    title: 'Requests',
    unit: 'a second',
    format: rate,
    least: 1,
    about: 'Answered, whatever the answer',
    series: [{name: 'a second', value: perSecond}],
  },
  {
    id: 'queue',
    title: 'Waiting',
    unit: 'now',
    format: count,
    least: 4,
    about: 'Not given to a worker yet',
    series: [{name: 'at most', value: (p) => p.waiting}],
  },
  {
    id: 'errors',
    title: 'Errors',
    unit: 'in the last minute',
    format: count,
    least: 4,
    bars: true,
    about: 'Answered 5xx by the router, or broken off',
    more: failures,
    series: [{name: 'in ten seconds', value: (p) => p.errors}],
  },
];

function state(panel, recent) {
  if (panel.id === 'queue' && recent.waiting > 0) return badge('warn', 'queue', 'A queue');
  if (panel.id === 'errors' && recent.errors > 0) return badge('bad', 'bad', 'Look at the log');
  return null;
}

function legend(panel, recent) {
  const [, second] = panel.series;
  if (!second) return h('p', {class: 'about'}, panel.more?.(recent) || panel.about);
  return [
    h('p', {class: 'second'}, h('i', {class: 'swatch dashed'}), h('b', null, panel.format(second.value(recent))), ` ${second.name}`),
    h('p', {class: 'about'}, panel.about),
  ];
}

export function panels(recent, points) {
  const span = spanOf(points, recent.at_ms);
  return PANELS.map((panel) =>
    h(
      'article',
      {class: panel.wide ? 'panel wide-panel' : 'panel', 'data-key': panel.id},
      h('div', {class: 'panel-head'}, h('h3', null, panel.title), state(panel, recent)),
      h(
        'p',
        {class: 'figure'},
        h('b', null, panel.format(panel.series[0].value(recent))),
        ' ',
        h('span', null, panel.unit ?? panel.series[0].name),
      ),
      legend(panel, recent),
      plot(panel, points, span),
      h('p', {class: 'readout', 'aria-live': 'polite', id: `read-${panel.id}`}),
    ),
  );
}

// What a panel says of the place that is pointed at, 0 to 1; null: of none.
export function read(figure, points, span, share) {
  const panel = PANELS.find((p) => p.id === figure.dataset.panel),
    line = figure.querySelector('.cursor');
  const out = document.getElementById(`read-${panel.id}`);
  const at = share == null ? null : span.now - 60e3 * span.minutes * (1 - share);
  const p = at == null ? null : points.reduce((a, b) => (a && Math.abs(a.at_ms - at) <= Math.abs(b.at_ms - at) ? a : b), null);
  const place = p ? x(span, p.at_ms) : 0;
  line.setAttribute('x1', place);
  line.setAttribute('x2', place);
  line.setAttribute('visibility', p ? 'visible' : 'hidden');
  const said = p && [...panel.series.map((s) => `${panel.format(s.value(p))} ${s.name}`), panel.more?.(p)].filter(Boolean);
  out.textContent = p ? `${clock.format(p.at_ms)}  ${said.join(', ')}` : '';
}
