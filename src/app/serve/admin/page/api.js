// SPDX-License-Identifier: Apache-2.0
// What the admin port is asked. The key, where there is one, is asked for once and kept for this tab (sessionStorage).

const KEY = 'kvroute-admin-key';
export const hasKey = () => sessionStorage.getItem(KEY) !== null;
export const setKey = (key) => (key === null ? sessionStorage.removeItem(KEY) : sessionStorage.setItem(KEY, key));

export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

async function ask(path, method = 'GET', body, signal) {
  const headers = {};
  if (hasKey()) headers.Authorization = `Bearer ${sessionStorage.getItem(KEY)}`;
  if (body) headers['Content-Type'] = 'application/json';
  const answer = await fetch(path, {method, headers, body: body && JSON.stringify(body), cache: 'no-store', signal});
  if (answer.ok) return answer;
  const told = await answer.json().catch(() => ({}));
  throw new Refused(answer.status, told.error ?? `the router answered ${answer.status}`);
}

// A worker's number may have 64 bits, more than a number has here: a long one is a text.
const read = (text) => JSON.parse(text.replace(/"worker_id":(\d{16,})/g, '"worker_id":"$1"'));
export const get = async (path) => read(await getText(path));
export const getText = async (path) => (await ask(path)).text();
// A part that this router may not have.
export const getIfThere = (path) =>
  get(path).catch((e) => {
    if (e.status === 404 || e.status === 400) return null;
    throw e;
  });
export const setWorkerState = (id, state) => ask(`workers/${id}`, 'PATCH', {state});
export const removeWorker = (id) => ask(`workers/${id}`, 'DELETE');

const SILENCE_MS = 10000,
  POLL_MS = 2000,
  STREAM_AGAIN_MS = 30000;
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

let held = false,
  stop = new AbortController();
// Nothing is asked for while the reader holds the page.
export function hold(yes) {
  held = yes;
  if (yes) stop.abort();
}
const unseen = () => document.hidden || held;

// Server-sent events by fetch, which can send the key. Ends when the stream does.
async function stream(onStatus) {
  let timer;
  stop = new AbortController();
  const wait = () => {
    clearTimeout(timer);
    timer = setTimeout(() => stop.abort(), SILENCE_MS);
  };
  const hide = () => document.hidden && stop.abort();
  document.addEventListener('visibilitychange', hide);
  wait();
  try {
    const reader = (await ask('status/stream', 'GET', undefined, stop.signal)).body.pipeThrough(new TextDecoderStream()).getReader();
    let text = '';
    for (;;) {
      const {value, done} = await reader.read();
      if (done) return;
      wait();
      text += value;
      const end = text.lastIndexOf('\n\n');
      if (end < 0) continue;
      const newest = text.slice(0, end).split('\n\n').pop();
      text = text.slice(end + 2);
      onStatus(read(newest.slice('data: '.length)), 'live');
    }
  } finally {
    clearTimeout(timer);
    document.removeEventListener('visibilitychange', hide);
  }
}

// Never ends: the stream, and while there is none /status every two seconds. A stream that fails while /status does not (something between
// here and the router holds it back) is tried again later, every other one at once. A page that is hidden, or held, asks for nothing.
export async function follow(onStatus, onTrouble) {
  let streamAt = 0;
  for (;;) {
    while (unseen()) {
      await pause(500);
      streamAt = 0;
    }
    try {
      if (Date.now() >= streamAt) {
        await stream(onStatus).catch((e) => {
          if (e.status === 401) throw e;
          if (!unseen()) streamAt = Date.now() + STREAM_AGAIN_MS;
        });
      }
      if (unseen()) continue;
      onStatus(await get('status'), 'polled');
      await pause(POLL_MS);
    } catch (e) {
      streamAt = 0;
      await onTrouble(e);
      if (e.status !== 401) await pause(POLL_MS);
    }
  }
}
