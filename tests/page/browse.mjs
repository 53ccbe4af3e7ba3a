// SPDX-License-Identifier: Apache-2.0
// The page in a browser, before the fleet of fleet.py. Screenshots are in $PAGE_SHOTS. The last line is "N passed, N failed".
import assert from 'node:assert/strict';
import {mkdirSync, readFileSync} from 'node:fs';
import {createRequire} from 'node:module';
import {join} from 'node:path';

const installed = createRequire(join(process.env.PAGE_PACKAGES, 'x.js'));
const {chromium} = installed('playwright-core');
const axe = readFileSync(installed.resolve('axe-core/axe.min.js'), 'utf8');
const {PAGE_URL, PAGE_KEYED_URL, PAGE_KEY, PAGE_SHOTS, PAGE_CHROMIUM} = process.env;
const WIDTHS = [400, 800, 1400],
  THEMES = ['light', 'dark'];
const MOST_SHIFT = 0.1; // what Core Web Vitals call good; a new finding moves what is below it

mkdirSync(PAGE_SHOTS, {recursive: true});
const browser = await chromium.launch({executablePath: PAGE_CHROMIUM, args: ['--no-sandbox']});
let passed = 0,
  failed = 0;

// One page, whose console must stay empty but for what `mayComplain` allows, and which must ask nobody but its own port.
async function check(name, options, look) {
  const context = await browser.newContext({viewport: {width: 1400, height: 900}, ...options});
  const page = await context.newPage(),
    said = [],
    strangers = [],
    home = new URL(options?.url ?? PAGE_URL).origin;
  page.setDefaultTimeout(20000);
  page.on('console', (m) => ['error', 'warning'].includes(m.type()) && !options?.mayComplain?.test(m.text()) && said.push(m.text()));
  page.on('pageerror', (e) => said.push(e.stack));
  page.on('request', (r) => new URL(r.url()).origin === home || strangers.push(r.url()));
  try {
    await options?.before?.(page);
    await page.goto(options?.url ?? PAGE_URL);
    await look(page);
    assert.deepEqual(said, [], 'the console is empty');
    assert.deepEqual(strangers, [], 'nobody else is asked');
    passed++;
    console.log(`ok   ${name}`);
  } catch (e) {
    failed++;
    console.log(`FAIL ${name}\n${e.stack}\n${said.join('\n')}`);
    await page.screenshot({path: join(PAGE_SHOTS, 'failed.png'), fullPage: true}).catch(() => {});
  }
  await context.close();
}

const ready = (page) => page.waitForSelector('#worker-1');
const shot = (page, name) => page.screenshot({path: join(PAGE_SHOTS, `${name}.png`), fullPage: true});
const focused = (page) =>
  page.evaluate(() => {
    const e = document.activeElement,
      box = e.getBoundingClientRect(),
      style = getComputedStyle(e);
    return {
      tag: e.tagName,
      id: e.id,
      text: e.textContent.trim().slice(0, 40),
      what: e.dataset.do,
      worker: e.dataset.worker,
      seen: box.bottom > 0 && box.top < innerHeight && box.width > 0,
      outlined: style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2,
    };
  });

// Presses Tab until `is` holds of what has the focus.
async function tabTo(page, is) {
  for (let i = 0; i < 200; i++) {
    await page.keyboard.press('Tab');
    const f = await focused(page);
    if (is(f)) return f;
  }
  throw new Error('Tab does not lead there');
}

// ---- how it looks --------------------------------------------------------------------------------------------

async function isSound(page) {
  const wide = await page.evaluate(() => [document.scrollingElement.scrollWidth, innerWidth]);
  assert.ok(wide[0] <= wide[1], `nothing sticks out: ${wide}`);
  await page.evaluate(axe);
  const found = await page.evaluate(() => axe.run(document, {resultTypes: ['violations']}));
  const grave = found.violations.filter((v) => ['serious', 'critical'].includes(v.impact));
  assert.deepEqual(
    grave.map((v) => `${v.id}: ${v.nodes.map((n) => n.html.slice(0, 160)).join(' | ')}`),
    [],
    'axe finds nothing serious',
  );
}

const shifts = () => {
  window.shifted = 0;
  new PerformanceObserver((list) =>
    list.getEntries().forEach((e) => {
      window.shifted += e.hadRecentInput ? 0 : e.value;
    }),
  ).observe({type: 'layout-shift', buffered: true});
};

for (const colorScheme of THEMES)
  for (const width of WIDTHS)
    await check(
      `${colorScheme}, ${width} pixels`,
      {colorScheme, viewport: {width, height: 900}, before: (page) => page.addInitScript(shifts)},
      async (page) => {
        await ready(page);
        const ground = await page.evaluate(() =>
          getComputedStyle(document.body)
            .backgroundColor.match(/\d+/g)
            .map(Number)
            .reduce((a, b) => a + b),
        );
        assert.equal(ground < 384, colorScheme === 'dark');
        const requests = page.waitForResponse((r) => r.url().endsWith('/history'));
        await requests;
        await isSound(page);
        await shot(page, `${colorScheme}-${width}`);
        assert.ok((await page.evaluate(() => window.shifted)) <= MOST_SHIFT, `layout shift ${await page.evaluate(() => window.shifted)}`);
        await page.fill('#request', 'of-two-legs');
        await page.press('#request', 'Enter');
        await page.waitForSelector('#picture');
        await isSound(page);
        await page.locator('#picture').screenshot({path: join(PAGE_SHOTS, `${colorScheme}-${width}-decision.png`)});
      },
    );

// ---- what it says --------------------------------------------------------------------------------------------

await check('a newcomer is told of the worker that is down, the blind one, the slow one, the drained one and the queue', {}, async (page) => {
  await ready(page);
  const told = await page.innerText('#findings');
  assert.match(told, /Worker 9 is down\s+Down for \d[^.]*\. Its last health check failed: .*refused/);
  for (const words of ['A queue: 2 requests wait for a worker', 'Worker 4 is blind', 'Worker 3 is slow', 'Worker 5 is drained'])
    assert.ok(told.includes(words), `${words}: ${told}`);
  assert.match(await page.innerText('#headline'), /^7 of 9 workers take requests$/);
  assert.match(await page.innerText('#worker-4'), /Blind[^]*does not know what is cached here[^]*No KV events endpoint is configured/);
  assert.match(await page.innerText('#worker-3'), /Slow[^]*times as long as this fleet’s usual/);
  assert.match(await page.innerText('#worker-5'), /Drained[^]*gets nothing new, because somebody asked for that/);
  assert.match(await page.innerText('#worker-1'), /Takes requests[^]*knows every block[^]*a second\s+Up for \d.*answered, 0 failed/);
  assert.match(await page.innerText('.panel[data-key=queue]'), /A queue/);
  assert.equal(await page.innerText('#link'), 'Live');
});

await check('a decision is a picture', {}, async (page) => {
  await ready(page);
  const d = await (await fetch(`${PAGE_URL}decisions?id=of-one-leg`)).json();
  await page.fill('#request', 'of-one-leg');
  await page.press('#request', 'Enter');
  await page.waitForSelector('#picture');
  assert.equal(await page.innerText('#picture-title'), `Worker ${d.worker_id} won`);
  assert.equal(await page.locator('.candidate').count(), d.candidates.length);
  assert.match(await page.innerText('.candidate.won'), new RegExp(`Worker ${d.worker_id}\\s+chosen`));
  const widths = await page.locator('.candidate.won .cost rect').evaluateAll((all) => all.map((r) => Number(r.getAttribute('width'))));
  const c = d.candidates.find((x) => x.worker_id === d.worker_id),
    most = Math.max(...d.candidates.map((x) => x.cost));
  assert.equal(widths.length, 4);
  assert.ok(Math.abs(widths.reduce((a, b) => a + b) - (100 * c.cost) / most) < 1, 'the terms are the cost');
  assert.match(await page.innerText('.true'), new RegExp(`${d.actual_cached_tokens.toLocaleString('en')}[^]*first token came after`));
  assert.equal(new URL(page.url()).hash, '#request=of-one-leg');
  await page.reload();
  await page.waitForSelector('#picture');
});

await check('two legs are two lanes', {}, async (page) => {
  await ready(page);
  await page.fill('#request', 'of-two-legs');
  await page.press('#request', 'Enter');
  await page.waitForSelector('#picture');
  assert.deepEqual(await page.locator('.lane h4').allInnerTexts(), [
    'First leg: the prompt is computed',
    'Second leg: the answer is generated',
  ]);
  assert.match(await page.innerText('.handoff'), /Hand-off.*vllm-nixl.*fetched by the decode worker/);
});

await check('a request that nobody knows is said to be unknown', {mayComplain: /404/}, async (page) => {
  await ready(page);
  await page.fill('#request', '<b>nobody</b>');
  await page.press('#request', 'Enter');
  assert.match(await page.innerText('#decision [role=alert]'), /Nothing is kept of "<b>nobody<\/b>"/);
});

await check('workers can be looked for', {}, async (page) => {
  await ready(page);
  await page.fill('#filter', 'drained');
  assert.deepEqual(await page.locator('.card h3').allInnerTexts(), ['Worker 5']);
  await page.fill('#filter', 'prefill');
  assert.deepEqual(await page.locator('.card h3').allInnerTexts(), ['Worker 6']);
  await page.fill('#filter', 'none of them');
  await page.waitForSelector('text=No worker is like that');
});

const names = (page) => page.locator('.card h3').allInnerTexts();

await check('workers are put in order, and the address keeps what was chosen', {}, async (page) => {
  await ready(page);
  await page.selectOption('#order', 'gravest');
  assert.equal((await names(page))[0], 'Worker 9');
  await page.selectOption('#order', 'slowest');
  assert.equal((await names(page))[0], 'Worker 3');
  await page.fill('#filter', 'blind');
  assert.equal(await page.evaluate(() => location.hash), '#show=blind&order=slowest');
  await page.reload();
  await page.waitForSelector('#worker-4');
  assert.deepEqual(await names(page), ['Worker 4']);
  assert.equal(await page.inputValue('#order'), 'slowest');
});

await check('an address leads to a worker, and to a decision in a page that is open', {url: `${PAGE_URL}#worker-5`}, async (page) => {
  await page.waitForFunction(() => {
    const box = document.querySelector('#worker-5:target')?.getBoundingClientRect();
    return box && box.top >= 0 && box.top < innerHeight;
  });
  await page.evaluate(() => location.assign('#request=of-two-legs'));
  await page.waitForSelector('#picture >> text=of-two-legs');
  await page.evaluate(() => location.assign('#request=of-one-leg'));
  await page.waitForSelector('#picture >> text=of-one-leg');
  assert.equal(await page.getAttribute('#picture .where a', 'href'), '#request=of-one-leg');
});

await check('a page that is held asks for nothing', {}, async (page) => {
  await ready(page);
  const asked = [];
  const ended = page.waitForEvent('requestfailed', (r) => r.url().endsWith('/status/stream'));
  await page.click('text=Pause');
  await ended;
  assert.equal(await page.innerText('#link'), 'Paused');
  page.on('request', (r) => asked.push(r.url()));
  await page.selectOption('#order', 'busiest'); // it can still be looked through
  assert.deepEqual(asked.filter((url) => url.includes('/status/')), []);
  const again = page.waitForRequest((r) => r.url().endsWith('/status/stream'));
  await page.click('text=Go on');
  await again;
  await page.waitForFunction(() => document.getElementById('link').textContent === 'Live');
});

// The file that a button saves.
async function saved(page, name) {
  const download = page.waitForEvent('download');
  await page.click(`[data-file="${name}"]`);
  assert.ok((await download).suggestedFilename().endsWith(name));
  return readFileSync(await (await download).path(), 'utf8');
}

await check('what is shown can be saved', {}, async (page) => {
  await ready(page);
  const workers = (await saved(page, 'workers.csv')).split('\r\n');
  assert.equal(workers.length, 9 + 2, 'a heading, nine workers, the end');
  assert.match(workers[0], /^"worker_id","model_name".*"ttft_model.factor"/);
  assert.match(await saved(page, 'decisions.csv'), /"of-two-legs"/);
  assert.match(await saved(page, 'hour.csv'), /^"at_ms","seconds","requests"/);
  assert.equal(JSON.parse(await saved(page, 'status.json')).workers.length, 9);
  assert.match(await saved(page, 'metrics.txt'), /^# HELP kvroute_/m);
  assert.equal(
    await page.evaluate(async () => (await import('/page/save.js')).csv([{id: '=1+1', n: -1, a: [1, 2]}, {id: 'a "b"', of: {x: null}}])),
    '"id","n","a","of.x"\r\n"\'=1+1",-1,"[1,2]",\r\n"a ""b""",,,\r\n',
  );
});

await check('the theme is chosen, and kept', {colorScheme: 'light'}, async (page) => {
  const ground = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  await ready(page);
  const light = await ground();
  await page.click('#theme');
  assert.equal(await ground(), light);
  await page.click('#theme');
  assert.equal(await page.innerText('#theme'), 'Theme: dark');
  const dark = await ground();
  assert.notEqual(dark, light);
  await page.reload();
  await ready(page);
  assert.equal(await ground(), dark);
});

await check('what this fleet does not show has words too', {}, async (page) => {
  await ready(page);
  const titles = await page.evaluate(async () => {
    const {failures, findings, headline} = await import('/page/words.js');
    const worker = (worker_id, more) => ({
      worker_id,
      state: 'active',
      status: 'up',
      schedulable: true,
      views: [],
      data_parallel_size: 1,
      ...more,
    });
    const view = (name, reason) => [
      {dp_rank: 0, view: 'whole'},
      {dp_rank: 1, view: name, reason},
    ];
    const day = 86400e3;
    const status = {
      recent: {at_ms: 1000 * day, failures: {refused: 2, broken: 1}},
      certificates: [400, 3.5, -1].map((days) => ({port: `of ${days}`, ends_at_ms: (1000 + days) * day})),
      workers: [
        worker(1, {status: 'down', since_s: 3900, schedulable: false, last_error: 'connection refused', views: view('unknown', 'gone')}),
        worker(2, {breaker_open: true, schedulable: false}),
        worker(3, {views: view('partial', 'events were lost')}),
        worker(4, {schedulable: false, why_not_schedulable: 'it has no endpoint'}),
        ...[5, 6, 7, 8, 9].map((id) => worker(id, {views: view('unknown', 'silent')})),
      ],
      last_minute: {advice: 'choices of the last minute: 1,200; another worker would help'},
    };
    return [headline(status), failures(status.recent), ...findings(status).map((f) => `${f.title}. ${f.text}`)];
  });
  assert.equal(titles[0], '6 of 9 workers take requests');
  const told = titles.join('\n');
  for (const words of [
    'Without a whole answer: 2 refused here, 1 broken off',
    'The certificate of the of 3.5 port ends in 3 days. Put a new one in its place',
    'The certificate of the of -1 port has ended.',
    'Worker 1 is down. Down for 1 h 5 min. Its last health check failed: connection refused.',
    'Worker 2 is paused after failures.',
    'Worker 3 is known in part. The router knows a part of what is cached here. Events were lost.',
    'Worker 4 gets no requests. It has no endpoint.',
    'Worker 7 is blind',
    '2 more workers like this',
    'Of 1,200, another worker would help.',
  ])
    assert.ok(told.includes(words), `${words}: ${told}`);
  assert.ok(!told.includes('Worker 8') && !told.includes('Worker 1 is blind') && !told.includes('400'), told);
});

// ---- when something is not there -----------------------------------------------------------------------------

await check(
  'without the stream it asks again and again',
  {mayComplain: /ERR_FAILED/, before: (page) => page.route('**/status/stream', (r) => r.abort())},
  async (page) => {
    await ready(page);
    assert.equal(await page.innerText('#link'), 'Every 2 s');
    await page.waitForResponse((r) => r.url().endsWith('/status'));
  },
);

await check('a router that does not answer is said to be silent', {mayComplain: /ERR_FAILED/}, async (page) => {
  await ready(page);
  await page.route('**/status*', (r) => r.abort());
  await page.route('**/status/stream', (r) => r.abort());
  await page.evaluate(() => window.stop()); // the stream that is open
  await page.waitForFunction(() => document.getElementById('link').textContent === 'No answer');
  await page.unroute('**/status*');
  await page.waitForFunction(() => document.getElementById('link').textContent !== 'No answer');
});

await check('the admin key is asked for once, and kept for the tab alone', {url: PAGE_KEYED_URL, mayComplain: /401/}, async (page) => {
  await page.waitForSelector('#ask[open]');
  assert.equal((await focused(page)).id, 'ask-key');
  await page.keyboard.type('open simsim');
  await page.keyboard.press('Enter');
  await page.waitForSelector('#ask[open] >> text=The key was not right');
  await page.keyboard.type(PAGE_KEY);
  await page.keyboard.press('Enter');
  await ready(page);
  assert.equal(await page.innerText('#link'), 'Live');
  assert.ok(
    await page.evaluate(
      (key) => Object.values(sessionStorage).includes(key) && !Object.values(localStorage).join().includes(key) && !document.cookie,
      PAGE_KEY,
    ),
  );
  await page.reload();
  await ready(page);
  assert.match(await saved(page, 'workers.csv'), /\r\n1,"mock"/);
  await page.click('#forget-key');
  await page.waitForSelector('#ask[open]');
  await page.keyboard.press('Escape');
  await page.click('#use-key');
  await page.waitForSelector('#ask[open]');
});

// ---- by keyboard ---------------------------------------------------------------------------------------------

await check('every stop of Tab is seen', {}, async (page) => {
  await ready(page);
  const seen = new Set();
  for (let i = 0; i < 150; i++) {
    await page.keyboard.press('Tab');
    const f = await focused(page);
    if (f.tag === 'BODY') break;
    if (i === 0) assert.equal(f.text, 'Skip to the fleet');
    await page.waitForFunction(() => {
      const box = document.activeElement.getBoundingClientRect();
      return document.activeElement === document.body || (box.bottom > 0 && box.top < innerHeight);
    });
    assert.ok(f.outlined, `what has the focus is marked: ${JSON.stringify(f)}`);
    seen.add(`${f.what ?? f.tag} ${f.worker ?? f.id ?? ''}`);
  }
  for (const stop of ['theme theme', 'drain 1', 'remove 1', 'resume 5', 'INPUT filter', 'INPUT request', 'FIGURE '])
    assert.ok(seen.has(stop), `${stop}: ${[...seen]}`);
});

await check('the skip link skips, charts are read by arrows', {}, async (page) => {
  await ready(page);
  await page.keyboard.press('Tab');
  await page.keyboard.press('Enter');
  assert.equal((await focused(page)).id, 'fleet');
  await tabTo(page, (f) => f.tag === 'FIGURE');
  await page.waitForResponse((r) => r.url().endsWith('/history'));
  await page.keyboard.press('ArrowLeft');
  await page.waitForFunction(() => /\d\d:\d\d .*reported by engines/.test(document.getElementById('read-hits').textContent));
});

await check('a worker is drained, resumed and removed by keyboard', {}, async (page) => {
  await ready(page);
  await tabTo(page, (f) => f.what === 'drain' && f.worker === '2');
  await page.keyboard.press('Enter');
  await page.waitForFunction(() => document.activeElement.dataset.do === 'resume' && document.activeElement.dataset.worker === '2');
  assert.match(await page.innerText('#worker-2 .badges'), /Drained/);
  assert.match(await page.innerText('#said'), /gets nothing new/);
  await page.keyboard.press('Enter');
  await page.waitForFunction(() => document.activeElement.dataset.do === 'drain');
  await tabTo(page, (f) => f.what === 'remove' && f.worker === '8');
  await page.keyboard.press('Enter');
  await page.waitForSelector('#ask[open]');
  assert.equal(await page.innerText('#ask-title'), 'Remove worker 8?');
  await page.keyboard.press('Escape');
  await page.waitForSelector('#ask:not([open])', {state: 'attached'});
  assert.equal((await focused(page)).worker, '8');
  assert.equal(await page.locator('#worker-8').count(), 1);
  await page.keyboard.press('Enter');
  await tabTo(page, (f) => f.id === 'ask-yes');
  await page.keyboard.press('Enter');
  await page.waitForSelector('#worker-8', {state: 'detached'});
});

await browser.close();
console.log(`${passed} passed, ${failed} failed`);
process.exit(failed ? 1 : 0);
