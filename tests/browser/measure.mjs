// What a page costs: its heap and nodes after a collection, and the tasks that kept it from answering.

import fs from 'node:fs';

/** A task that is longer is felt. */
export const LONG_MS = 50;
/** Between two looks at how long the page's main thread had to wait for a processor. */
const LOOK_MS = 10;

/** Slows the page's processor down; `rate` 4 is an old phone. */
export async function throttle(page, rate) {
  const cdp = await page.context().newCDPSession(page);
  await cdp.send('Emulation.setCPUThrottlingRate', { rate });
}

/** Heap in bytes and nodes of the document, after a collection. */
export async function cost(page) {
  const cdp = await page.context().newCDPSession(page);
  // The first frees what the page dropped, the second what only that held.
  for (let n = 0; n < 3; n += 1) await cdp.send('HeapProfiler.collectGarbage');
  const { usedSize: heap } = await cdp.send('Runtime.getHeapUsage');
  const { nodes, jsEventListeners: listeners } = await cdp.send('Memory.getDOMCounters');
  await cdp.detach();
  return { heap, nodes, listeners };
}

/** The process that draws the page: of all renderers, the one that answers to a number of our own. */
async function rendererOf(page) {
  const cdp = await page.context().browser().newBrowserCDPSession();
  const spent = async () => {
    const { processInfo } = await cdp.send('SystemInfo.getProcessInfo');
    return new Map(
      processInfo.filter(({ type }) => type === 'renderer').map(({ id, cpuTime }) => [id, cpuTime]),
    );
  };
  const before = await spent();
  await page.evaluate(() => {
    const until = performance.now() + 300;
    while (performance.now() < until);
  });
  const after = await spent();
  await cdp.detach();
  return [...after].sort((a, b) => b[1] - (before.get(b[0]) ?? 0) - (a[1] - (before.get(a[0]) ?? 0)))[0][0];
}

/**
 * Notes every task of the page over `LONG_MS`. `start` gives a function that ends it and gives them as
 * `{after, wall, own}`: `after` ms since the start; `own` is what the kernel counts of `wall` as run, without
 * the time in which the page was ready and had no processor, so that a busy machine is no slow page.
 */
export async function taskWatch(page) {
  const pid = await rendererOf(page);
  const start = async () => {
    const began = Date.now();
    const looks = [];
    const timer = setInterval(() => {
      const [ran, waited] = fs.readFileSync(`/proc/${pid}/task/${pid}/schedstat`, 'utf8').split(' ');
      looks.push({ at: Date.now(), ran: Number(ran) / 1e6, waited: Number(waited) / 1e6 });
    }, LOOK_MS);
    await page.evaluate(() => {
      window.__tasks = [];
      window.__observer = new PerformanceObserver((list) => {
        for (const { startTime, duration } of list.getEntries())
          window.__tasks.push([performance.timeOrigin + startTime, duration]);
      });
      window.__observer.observe({ type: 'longtask' });
    });
    return async () => {
      clearInterval(timer);
      const tasks = await page.evaluate(() => {
        window.__observer.disconnect();
        return window.__tasks;
      });
      return tasks.map(([at, wall]) => {
        const first = looks.findLast((look) => look.at <= at) ?? looks[0];
        const last = looks.find((look) => look.at >= at + wall) ?? looks.at(-1);
        const own = Math.min(wall - Math.max(0, last.waited - first.waited), last.ran - first.ran);
        return { after: Math.round(at - began), wall: Math.round(wall), own: Math.round(own) };
      });
    };
  };
  return { start };
}
