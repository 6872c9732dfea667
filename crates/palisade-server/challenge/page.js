// The challenge page: solves a challenge or shows a provider's, hands the solution in, and goes
// back to where the visitor was.
"use strict";

const ANSWER = "/.palisade/challenge";
const WORKER = "/.palisade/challenge-worker.js";
const WORKERS_MAX = 4;
// A calculation that is refused (its time is over, another network) is started anew by itself.
const RESTARTS_MAX = 2;
const ANSWER_TIMEOUT_MS = 20_000;
const SCRIPT_TIMEOUT_MS = 20_000;

const main = document.getElementById("challenge");
const progress = document.getElementById("progress");
const status = document.getElementById("status");
const widget = document.getElementById("widget");
const again = document.getElementById("again");
const onward = document.getElementById("onward");

const words = JSON.parse(main.dataset.words);
const ticket = main.dataset.ticket;
const language = document.documentElement.lang;

/** True once the ticket is too old: only the refused request itself gets another one. */
let is_stale = false;

/** Told to screen readers too, so only when something changes. */
function say(text) {
  if (status.textContent !== text) status.textContent = text;
}

function show(element) {
  element.hidden = false;
  return element;
}

function fail(text) {
  progress.hidden = true;
  widget.hidden = true;
  say(text);
  show(again).focus();
}

/** Shares the numbers among workers. Returns the one that is sought. */
function search({ salt, challenge, maxnumber }) {
  const count = Math.max(1, Math.min(WORKERS_MAX, navigator.hardwareConcurrency || 1));
  const workers = [];
  let tried = 0;
  let ended = 0;
  const found = new Promise((resolve, reject) => {
    for (let first = 0; first < count; first += 1) {
      const worker = new Worker(WORKER);
      workers.push(worker);
      worker.onerror = () => reject(new Error("worker"));
      worker.onmessage = ({ data }) => {
        if (data.number !== undefined) resolve(data.number);
        if (data.ended) ended += 1;
        if (ended === count) reject(new Error("no number"));
        tried += data.tried || 0;
        progress.value = Math.min(999, (1000 * tried) / maxnumber);
      };
      worker.postMessage({ salt, challenge, max: maxnumber, first, step: count });
    }
  });
  return found.finally(() => {
    for (const worker of workers) worker.terminate();
  });
}

async function solve(parameters) {
  say(words.working);
  widget.hidden = true;
  show(progress);
  const { algorithm, challenge, salt, signature } = parameters;
  const number = await search(parameters);
  progress.value = 1000;
  return btoa(JSON.stringify({ algorithm, challenge, number, salt, signature }));
}

/** Loads the script of a provider; resolves when its interface is ready. */
function load(address, ready) {
  return new Promise((resolve, reject) => {
    const late = setTimeout(() => reject(new Error("late")), SCRIPT_TIMEOUT_MS);
    window.palisadeReady = () => {
      clearTimeout(late);
      resolve(ready());
    };
    const script = document.createElement("script");
    script.src = address;
    script.async = true;
    script.onerror = () => reject(new Error("blocked"));
    document.head.append(script);
  });
}

/** Shows a provider's widget; resolves with its token. */
function ask(api, settings) {
  progress.hidden = true;
  say(words.answer);
  show(widget);
  // A widget that was used is not shown twice.
  const place = document.createElement("div");
  widget.replaceChildren(place);
  const theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  return new Promise((resolve, reject) => {
    api.render(place, {
      ...settings,
      theme,
      callback: resolve,
      "error-callback": () => reject(new Error("provider")),
      "expired-callback": () => reject(new Error("expired")),
    });
  });
}

const hl = encodeURIComponent(language);

/** A way to a solution for each kind of challenge. */
const kinds = {
  "proof-of-work": solve,
  async turnstile({ site_key, action }) {
    const address = "https://challenges.cloudflare.com/turnstile/v0/api.js?render=explicit&onload=palisadeReady";
    const api = window.turnstile ?? (await load(address, () => window.turnstile));
    return ask(api, { sitekey: site_key, action, language });
  },
  async hcaptcha({ site_key }) {
    const address = `https://js.hcaptcha.com/1/api.js?render=explicit&onload=palisadeReady&hl=${hl}`;
    const api = window.hcaptcha ?? (await load(address, () => window.hcaptcha));
    return ask(api, { sitekey: site_key });
  },
  async recaptcha({ site_key, action, version }) {
    const render = version === 3 ? encodeURIComponent(site_key) : "explicit";
    const address = `https://www.google.com/recaptcha/api.js?render=${render}&onload=palisadeReady&hl=${hl}`;
    const api = window.grecaptcha ?? (await load(address, () => window.grecaptcha));
    return version === 3 ? api.execute(site_key, { action }) : ask(api, { sitekey: site_key });
  },
};

/** Hands a solution in, or asks for a new challenge without one. */
async function post(solution) {
  const stop = new AbortController();
  const late = setTimeout(() => stop.abort(), ANSWER_TIMEOUT_MS);
  try {
    const response = await fetch(ANSWER, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ ticket, solution }),
      credentials: "same-origin",
      cache: "no-store",
      redirect: "error",
      signal: stop.signal,
    });
    return { status: response.status, ...(await response.json()) };
  } catch {
    return { reason: "unavailable" };
  } finally {
    clearTimeout(late);
  }
}

function leave(path) {
  const target = new URL(path, location.origin);
  if (target.origin !== location.origin) return;
  main.dataset.done = "true";
  say(words.done);
  show(onward).href = target.href;
  onward.focus();
  location.replace(target.href);
}

function explain(answer) {
  if (answer.status === 429) return words.wait;
  const reasons = { late: words.late, used: words.late, foreign: words.late, unavailable: words.offline };
  return reasons[answer.reason] ?? words.wrong;
}

async function run(first) {
  let challenge = first;
  for (let restarts = 0; ; restarts += 1) {
    const way = kinds[challenge.kind];
    if (!way) return fail(words.wrong);
    const solution = await way(challenge.parameters);
    const answer = await post(solution);
    if (answer.passed) return leave(answer.path);
    challenge = answer.challenge;
    const by_itself = challenge?.kind === "proof-of-work" && restarts < RESTARTS_MAX;
    if (!by_itself) return fail(explain(answer));
  }
}

async function start(first) {
  again.hidden = true;
  progress.removeAttribute("value");
  try {
    const answer = first ? { challenge: first } : await post();
    is_stale = answer.reason === "late";
    if (!answer.challenge) return fail(explain(answer));
    await run(answer.challenge);
  } catch {
    fail(words.blocked);
  }
}

again.addEventListener("click", () => (is_stale ? location.reload() : start()));
show(document.getElementById("work"));
document.getElementById("heading").focus();
start(JSON.parse(main.dataset.challenge));
