/**
 * The page: makes the parts, joins them, and follows the address (`#/t7`, `#/t7/350` for a row, `#/new`,
 * `#/device`).
 */

import { Api } from './core/api.js';
import { Session } from './core/session.js';
import { storageIn } from './core/storage.js';
import { S } from './core/strings.js';
import { BarView } from './view/bar.js';
import { ComposerView } from './view/composer.js';
import { byId } from './view/dom.js';
import { later } from './view/later.js';
import { LogView } from './view/log.js';
import { Notifier } from './view/notify.js';
import { SideView } from './view/side.js';
import { fitKeyboard } from './view/viewport.js';
import { rememberWindow } from './view/remember.js';

const MODELS_FRESH_MS = 30_000;
/** Small devices hold fewer rows; the server takes the least of all wishes. */
const SMALL_WISH = { chunkLimit: 120 };

const storage = storageIn(() => localStorage);
const api = new Api(() => storage.get('token'));
const clock = {
  setTimer: (run, ms) => setTimeout(run, ms),
  clearTimer: (timer) => clearTimeout(timer),
  now: () => Date.now(),
  random: () => Math.random(),
};
const socket = () =>
  new WebSocket(`${location.protocol === 'https:' ? 'wss' : 'ws'}://${location.host}/ws`);
const small = (navigator.deviceMemory || 4) < 2;
const session = new Session({ api, storage, socket, clock, wish: small ? SMALL_WISH : {} });

/** Pages beside the log, by their address; each is loaded when it is first wanted. */
const PAGES = {
  device: () => later('device').then(({ DeviceView }) => new DeviceView(api, deeds)),
  archived: () => later('archived').then(({ ArchivedView }) => new ArchivedView(api, deeds)),
};
const pages = {};
let models = null;
let modelsAt = 0;
let status = null;
/** The tab that was archived last, and where that is told. */
let undo = {};

const address = () => location.hash.slice(2).split('/')[0];
const place = () => (address() in PAGES ? address() : session.current);

/**
 * Runs what may be refused, and tells.
 * @template T
 * @param {() => Promise<T>} act
 * @returns {Promise<T|undefined>}
 */
async function attempt(act) {
  try {
    return await act();
  } catch (error) {
    if (error.status === 401) denied();
    else if (error.status === 0) notifier.toast(S.unreachable);
    else notifier.toast(S.failed(error.message));
    return undefined;
  }
}

/** @param {string} title  what fits into one line of a small message */
const brief = (title) => (title.length > 48 ? `${[...title].slice(0, 45).join('').trimEnd()}…` : title);

/** The next tab's model and effort, while there is none yet. */
const draft = () => ({
  model: storage.get('draftModel') || undefined,
  effort: storage.get('draftEffort') || undefined,
});

const tabPath = (rest = '') => `/api/tabs/${session.current}${rest}`;

const deeds = {
  attempt,
  place,
  models: () => models,
  status: () => status,
  draft: () => ({ ...draft(), model: draft().model || (models && models.models[0] && models.models[0].id) }),
  away: () => !byId('banner').hidden,
  sheet: (open) => side.sheet(open),
  focus: () => composer.focus(),
  stop: () => attempt(() => api.post(tabPath('/stop'))),
  change: (change) =>
    attempt(async () => {
      const tab = await api.patch(tabPath(), change);
      // Known here at once: the server's frame may come later. The rest of an answer may be older than it.
      const known = session.tabs.get(tab.id);
      for (const key of known ? Object.keys(change) : []) known[key] = tab[key];
    }),
  sendQueue: () => attempt(() => api.post(tabPath('/queue/send'))),
  lookAgain: () => loadModels(true),
  refreshModels: () => loadModels(false),
  async send(text) {
    const done = await attempt(async () => {
      await session.send(text, draft());
      return true;
    });
    if (!done && !composer.text) composer.set(text);
  },
  edit(clientId) {
    const text = session.forget(clientId);
    composer.set(composer.text ? `${text}\n${composer.text}` : text);
    composer.field.focus();
  },
  async takeBack(one) {
    await attempt(() => session.takeBack(one.messageId));
    // What was longer than the server tells of a queued message stays where it was.
    if (!composer.text && (!one.bytes || one.bytes <= 1024)) composer.set(one.text);
  },
  pickModel(model) {
    if (session.current) return deeds.change({ model });
    storage.set('draftModel', model);
    storage.set('draftEffort', null);
    bar.draw();
    return undefined;
  },
  pickEffort(effort) {
    if (session.current) return deeds.change({ effort: effort || null });
    storage.set('draftEffort', effort);
    return undefined;
  },
  compact: () => attempt(() => api.post(tabPath('/compact'))),
  export: (format) =>
    attempt(async () => {
      const { url } = await api.post(tabPath(`/export?format=${format}`));
      (await later('menu')).download(url);
    }),
  menu: (button, efforts) =>
    attempt(async () => {
      const { openMenu } = await later('menu');
      const tab = session.tabs.get(session.current);
      openMenu(button, tab, deeds, { efforts, effort: (tab || draft()).effort || '' });
    }),
  rename: () => bar.rename(),
  cache: () =>
    attempt(async () => (await later('cache')).showCache(api, session.tabs.get(session.current))),
  requests: (turnId, firstSeq) =>
    attempt(async () => (await later('cache')).turnRequests(api, session.current, turnId, firstSeq)),
  bringBack: (id) =>
    attempt(async () => {
      // Known here at once: the address is looked up before the server's frame may have come.
      const tab = await api.patch(`/api/tabs/${id}`, { archived: false });
      session.tabs.set(id, tab);
      if (undo.id === id) undo.toast.remove();
      location.hash = `#/${id}`;
    }),
  async archive() {
    const id = session.current;
    const { title } = session.tabs.get(id);
    if (!(await attempt(() => api.patch(`/api/tabs/${id}`, { archived: true })))) return;
    location.hash = '#/new';
    const act = () => deeds.bringBack(id);
    const toast = notifier.toast(S.archived(brief(title || S.untitled)), { word: S.undo, act });
    undo = { id, toast };
  },
};

const notifier = new Notifier(session);
const bar = new BarView(session, deeds);
const side = new SideView(session, deeds);
const log = new LogView(byId('log'), session, deeds);
byId('edge').append(log.edge);
const composer = new ComposerView(session, deeds, log.jump);
fitKeyboard(byId('app'), () => log.scroller.pin());
const recall = rememberWindow(session);

// ---- what happens → what is drawn
// -----------------------------------------------------------------------------

function drawTabs() {
  side.draw();
  bar.draw();
  composer.draw();
  notifier.marks();
}

/** Once a frame is enough, however many rows come in it. */
let drawing = 0;
function drawComposer() {
  drawing ||= requestAnimationFrame(() => {
    drawing = 0;
    composer.draw();
  });
}

const reactions = {
  tabs: drawTabs,
  rows(cause) {
    log.changed();
    drawComposer();
    // A snapshot: turns may have ended unseen.
    if (cause === 'window') loadSums();
  },
  delta: () => log.grew(),
  queue() {
    log.changed();
    composer.draw();
  },
  edge: () => log.showEdges(),
  follow: () => log.showEdges(),
  show(around) {
    log.cleared(around);
    composer.moved();
    storage.set('lastTab', session.current);
    const wanted = session.current ? `#/${session.current}` : '#/new';
    if (location.hash !== wanted && !(address() in PAGES)) history.replaceState(null, '', wanted);
  },
  welcome: () => route(),
  approvals: drawTabs,
  connection(state) {
    notifier.connection(state);
    if (state === 'denied') denied();
    if (state === 'open') {
      loadModels(false);
      loadStatus();
    }
  },
  notice: (text) => notifier.toast(text),
  broken: () => notifier.broken(),
  denied,
  'turn-end': ({ stopReason }) =>
    notifier.say(stopReason === 'end' ? S.turnDone : S.turnEnded(S.stops[stopReason] || stopReason)),
};
session.on((what, detail) => reactions[what] && reactions[what](detail));

function denied() {
  if (!storage.get('token')) return;
  storage.set('token', null);
  session.connection.stop();
  pair((view) => view.ended());
}

let pairing = null;

/** @param {(view: any) => void} act  with the screen of a browser that is not paired */
const pair = (act) =>
  attempt(async () => {
    const { PairingView } = await later('pairing');
    pairing ||= new PairingView(api, (token) => {
      storage.set('token', token);
      begin();
    });
    act(pairing);
  });

/** @returns {string|null} the code of a pairing link; the address forgets it at once */
function codeFromAddress() {
  const found = location.hash.match(/^#pair=([A-Za-z0-9-]{4,32})$/);
  if (!found) return null;
  history.replaceState(null, '', location.pathname + location.search);
  return found[1];
}

/** The device changed under an open page, or the address did. */
function route() {
  const wanted = address();
  const aside = wanted in PAGES;
  Object.keys(PAGES).forEach(showPage);
  byId('log').hidden = byId('foot').hidden = aside;
  const seq = Number(location.hash.split('/')[2]) || 0;
  if (!aside && wanted !== 'new' && session.tabs.has(wanted)) session.show(wanted, seq);
  else if (!aside && wanted === 'new') session.show(null);
  else if (!aside && session.epoch) {
    if (wanted) notifier.toast(S.noSuchTab);
    session.show(newestTab());
  }
  drawTabs();
}

/** @param {string} name */
async function showPage(name) {
  if (address() === name && !pages[name]) {
    const page = await attempt(PAGES[name]);
    pages[name] = pages[name] || page;
  }
  if (pages[name]) pages[name].show(address() === name);
}

function newestTab() {
  const last = storage.get('lastTab');
  if (session.tabs.has(last)) return last;
  const tabs = [...session.tabs.values()].sort((a, b) => b.updatedAt - a.updatedAt);
  return tabs.length ? tabs[0].id : null;
}

async function loadModels(force) {
  if (!force && models && Date.now() - modelsAt < MODELS_FRESH_MS) return;
  modelsAt = Date.now();
  const offer = await attempt(() => api.get('/api/models'));
  if (offer) models = offer;
  bar.draw();
  log.changed();
}

async function loadStatus() {
  try {
    status = await api.get('/api/status');
    side.demo.hidden = !status.demo;
    composer.drawStatus();
  } catch {
    // The device's page tells what is wrong; here it is only a label.
  }
}

/** Sums of turns that ended before this page looked. */
async function loadSums() {
  const tab = session.current;
  if (!tab) return;
  try {
    const { turns } = await api.get(`/api/tabs/${tab}/turns?limit=20`);
    for (const turn of turns) {
      const usage = { input: 0, cacheRead: 0, cacheWrite: 0, output: 0 };
      for (const step of turn.steps)
        for (const key of Object.keys(usage)) usage[key] += (step.usage && step.usage[key]) || 0;
      if (turn.sealedAt) session.keepSum(turn.turnId, { stopReason: turn.stopReason, usage });
    }
    if (session.current === tab) reactions.rows();
  } catch {
    // Footers without sums are footers still.
  }
}

// ---- the beginning
// --------------------------------------------------------------------------------------------

function begin() {
  byId('pair').hidden = true;
  byId('app').hidden = false;
  recall();
  session.start();
  route();
}

window.addEventListener('hashchange', () => {
  if (location.hash === '#ask') {
    history.replaceState(null, '', session.current ? `#/${session.current}` : '#/new');
    composer.field.focus();
    return;
  }
  const code = codeFromAddress();
  if (code) usePairingLink(code);
  else route();
});
for (const [target, name] of [
  [window, 'online'],
  [window, 'pageshow'],
  [document, 'visibilitychange'],
]) {
  target.addEventListener(name, () => {
    if (document.visibilityState === 'visible') session.connection.nudge();
  });
}
document.addEventListener('keydown', (event) => {
  if (
    event.key === 'Escape' &&
    document.activeElement === composer.field &&
    composer.stopButton.hidden === false
  )
    deeds.stop();
});

/** A link pairs only a browser that is not paired yet, so that a second click does not use a code up. */
async function usePairingLink(code) {
  if (storage.get('token')) {
    try {
      await api.get('/api/tabs');
      return begin();
    } catch (error) {
      if (error.status !== 401) return begin();
      storage.set('token', null);
    }
  }
  return pair((view) => view.pair(code));
}

const code = codeFromAddress();
if (code) usePairingLink(code);
else if (storage.get('token')) begin();
else pair((view) => view.show());
