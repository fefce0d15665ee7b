// The service worker. It stores the pages that were read last, for reading without a network, and
// shows the person's notices. Both are removed when the person signs out.
const settings = self.LOOM;
const gettext = (text) => self.words?.[text] ?? text;
const PREFIX = "loom-";
const SHELL = `${PREFIX}shell-${settings.shell.join("|").replace(/[^\w|]/g, "")}`;
const PAGES = `${PREFIX}pages`;
const READ_AT = "X-Loom-Read-At";
const PERSON = "X-Loom-Person";
const KEPT = /^\/($|w\/[^/]+\/$|s\/[^/]+\/$)/;
const GONE = [403, 404, 410]; // the page is no longer there for this person, so its copy is removed
const MAX_AGE_MS = 7 * 86400000;
const RETRY_DELAYS_MS = [500, 1000, 2000, 4000, 8000];

addEventListener("install", (event) => event.waitUntil((async () => {
  const cache = await caches.open(SHELL);
  // Without credentials: the offline page is the same for everybody.
  await cache.addAll(settings.shell.map((url) => new Request(url, { credentials: "omit" })));
  await skipWaiting();
})()));

addEventListener("activate", (event) => event.waitUntil(takeOver()));

async function takeOver() {
  const used = settings.maxPages ? [SHELL, PAGES] : [SHELL];
  for (const name of await caches.keys()) {
    if (name.startsWith(PREFIX) && !used.includes(name)) await caches.delete(name);
  }
  await registration.navigationPreload?.enable();
  await clients.claim();
}

// Pages

addEventListener("fetch", (event) => {
  const { request } = event;
  const url = new URL(request.url);
  if (url.origin !== location.origin) return;
  if (request.mode === "navigate" && url.pathname.startsWith(settings.signIn)) event.waitUntil(forgetPages());
  if (request.method === "POST" && url.pathname === settings.signOut) event.waitUntil(forget());
  if (request.method !== "GET") return;
  if (url.pathname.startsWith(settings.statics)) event.respondWith(readStatic(request));
  else if (request.mode === "navigate") event.respondWith(readPage(event, url));
});

/** Names of static files change with their contents, so a cached file is never out of date. */
async function readStatic(request) {
  const found = await caches.match(request, { ignoreVary: true });
  if (found) return found;
  const response = await fetch(request);
  if (response.ok) {
    const copy = response.clone();
    caches.open(SHELL).then((cache) => cache.put(request, copy)).catch(() => {});
  }
  return response;
}

/** Try the network first, always. */
async function readPage(event, url) {
  let response;
  try {
    response = (await event.preloadResponse) ?? (await fetch(event.request));
  } catch (error) {
    return (await readCopy(url)) ?? (await caches.match(settings.offline)) ?? Promise.reject(error);
  }
  if (!settings.maxPages) return response;
  if (GONE.includes(response.status)) event.waitUntil(drop(url, response.clone()));
  else if (!url.search && KEPT.test(url.pathname)) event.waitUntil(keep(url, response.clone()));
  return response;
}

const personOf = (html) => html.match(/<meta name="loom-person" content="(\w+)">/)?.[1];

/** Remove the copy of a page, unless a proxy in front of the server made the response. */
async function drop(url, response) {
  if (personOf(await response.text())) await (await caches.open(PAGES)).delete(url.pathname);
}

async function keep(url, response) {
  const isPage = response.ok && (response.headers.get("Content-Type") ?? "").startsWith("text/html");
  if (!isPage || /no-store/.test(response.headers.get("Cache-Control") ?? "")) return;
  const html = await response.text();
  const person = personOf(html);
  if (!person) return;
  let cache = await caches.open(PAGES);
  for (const request of await cache.keys()) {
    const { headers } = await cache.match(request, { ignoreVary: true });
    if (headers.get(PERSON) !== person) {
      await caches.delete(PAGES);
      cache = await caches.open(PAGES);
      break;
    }
    if (Number(headers.get(READ_AT)) < Date.now() - MAX_AGE_MS) await cache.delete(request);
  }
  const headers = new Headers(response.headers);
  headers.set(READ_AT, Date.now());
  headers.set(PERSON, person);
  headers.delete("Vary");
  await cache.put(url.pathname, new Response(html, { headers }));
  const kept = await cache.keys();
  for (const request of kept.slice(0, -settings.maxPages)) await cache.delete(request);
}

/** Return the stored copy of a page, with a bar that says when it was read. */
async function readCopy(url) {
  const found = await caches.match(url.pathname, { cacheName: PAGES });
  if (!found || Number(found.headers.get(READ_AT)) < Date.now() - MAX_AGE_MS) return undefined;
  const html = await found.text();
  const time = new Date(Number(found.headers.get(READ_AT))).toISOString();
  const when = `<time data-relative="off" datetime="${time}">${time}</time>`; // offline.js localises it
  const said = gettext("Offline, as of %(time)s.").replace("%(time)s", when);
  const bar = `<link rel="stylesheet" href="${settings.offlineStyle}">`
    + `<script type="module" src="${settings.offlineScript}"></script>`
    + `<p class="offline-bar" role="status">${said} <a href="${url.pathname}">${gettext("Try again")}</a></p>`;
  const headers = new Headers(found.headers);
  headers.delete("Content-Length");
  headers.delete("Content-Encoding");
  return new Response(html.replace(/<body[^>]*>/, (body) => body + bar), { headers });
}

// Signing out

const forgetPages = () => caches.delete(PAGES);

async function forget() {
  await forgetPages();
  for (const notice of await registration.getNotifications()) notice.close();
  await (await registration.pushManager.getSubscription())?.unsubscribe();
}

// Notices

/** A push has no content, so the worker asks the server for notices. Pushes are handled in turn. */
let telling = Promise.resolve();
addEventListener("push", (event) => {
  telling = telling.then(tell, tell);
  event.waitUntil(telling);
});

const wait = (milliseconds) => new Promise((done) => { setTimeout(done, milliseconds); });

/** Ask for the notices. Retry, because a server that is being restarted responds a bit later. */
async function ask() {
  for (const pause of [...RETRY_DELAYS_MS, 0]) {
    const answer = await fetch(settings.waiting, { cache: "no-store" }).catch(() => null);
    if (answer && answer.status < 500) return answer;
    await wait(pause);
  }
  return null;
}

async function tell() {
  const answer = await ask();
  if (answer?.status === 401) return forget();
  if (!answer?.ok) {
    return registration.showNotification("Loom Web", {
      body: gettext("You have a new notification. Open Loom Web to see it."),
      tag: "unreachable",
      icon: settings.icon,
      data: { url: "/" },
    });
  }
  const { new: notices, still, csrf } = await answer.json();
  for (const shown of await registration.getNotifications()) {
    if (!still.includes(shown.tag)) shown.close();
  }
  const windows = await clients.matchAll({ type: "window", includeUncontrolled: true });
  const inView = windows.filter(({ visibilityState }) => visibilityState === "visible");
  for (const notice of notices) {
    if (notice.event === "test" || !inView.some(({ url }) => new URL(url).pathname === notice.url)) await show(notice);
  }
  if (notices.length) await post(settings.shown, JSON.stringify({ notices: notices.map(({ id }) => id) }), csrf, "application/json");
}

const TITLES = { approve: gettext("Approve"), deny: gettext("Deny") };

function show({ id, event, title, body, url, at, decide, call, actions = [] }) {
  return registration.showNotification(title, {
    body,
    tag: id,
    icon: settings.icon,
    badge: settings.badge,
    timestamp: at,
    requireInteraction: event === "asks",
    actions: actions.map((action) => ({ action, title: TITLES[action] })),
    data: { url, decide, call },
  });
}

function post(url, body, csrf, type) {
  const headers = { "Content-Type": type, "X-CSRFToken": csrf };
  return fetch(url, { method: "POST", headers, body, redirect: "error" });
}

addEventListener("notificationclick", (event) => {
  const { notification, action } = event;
  notification.close();
  event.waitUntil(action ? decide(notification, action) : open(notification.data.url));
});

async function open(url) {
  const windows = await clients.matchAll({ type: "window" });
  const there = windows.find((window) => new URL(window.url).pathname === url);
  return there ? there.focus() : clients.openWindow(url);
}

/** Send a decision. Success needs no message, because the answer continues. */
async function decide({ title, tag, data }, act) {
  let problem = gettext("This could not be sent. Open the session to answer.");
  try {
    const { csrf } = await (await fetch(settings.waiting, { cache: "no-store" })).json();
    const body = new URLSearchParams({ act, call: data.call }).toString();
    const answer = await post(data.decide, body, csrf, "application/x-www-form-urlencoded");
    if (answer.ok) return;
    problem = (await answer.json()).error ?? problem;
  } catch { /* shown below */ }
  await registration.showNotification(title, { body: problem, tag, icon: settings.icon, data: { url: data.url } });
}

addEventListener("pushsubscriptionchange", (event) => event.waitUntil((async () => {
  const options = event.oldSubscription?.options;
  const made = event.newSubscription ?? (options && (await registration.pushManager.subscribe(options)));
  if (!made) return;
  const { csrf } = await (await fetch(settings.waiting, { cache: "no-store" })).json();
  await post(settings.subscribe, JSON.stringify(made), csrf, "application/json");
})()));
