// What a visitor does with the challenge page, in a real Chromium. `node challenge.mjs STORY` plays
// one story and fails with what went wrong.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import puppeteer from "puppeteer-core";

const { SITE: site, PICTURES } = process.env;
const axeSource = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const PATIENCE = 45_000;
const ANSWER = "/.palisade/challenge";

/** Everything that a page said and should not have: errors, and requests that leave the site. */
function listen(page, allowed = []) {
  const said = [];
  page.on("console", (message) => {
    const place = message.location().url ?? "";
    // The refusal itself is one.
    const is_status = message.text().includes("status of 4");
    if (["error", "warn"].includes(message.type()) && !is_status) said.push(`${message.text()} ${place}`);
  });
  page.on("pageerror", (error) => said.push(String(error)));
  page.on("request", (request) => {
    const url = request.url();
    if (!url.startsWith(site) && !allowed.some((known) => url.startsWith(known))) said.push(`asked for ${url}`);
  });
  return () => assert.deepEqual(said, []);
}

async function accessible(page, what) {
  const session = await page.createCDPSession();
  await session.send("Runtime.evaluate", { expression: axeSource });
  const found = await page.evaluate(async () => {
    const { violations } = await window.axe.run(document, { resultTypes: ["violations"] });
    return violations.map(({ id, nodes }) => `${id}: ${nodes.map((node) => node.html).join(" ")}`);
  });
  assert.deepEqual(found, [], what);
}

async function fits(page, what) {
  const [scroll, client] = await page.evaluate(() => [
    document.documentElement.scrollWidth,
    document.documentElement.clientWidth,
  ]);
  assert.ok(scroll <= client, `${what}: ${scroll} wide in ${client}`);
}

const heading = (page) => page.$eval("h1", (element) => element.textContent);

const reads = (page, words) =>
  page.waitForFunction((wanted) => document.body.textContent.includes(wanted), { timeout: PATIENCE }, words);

/** Uses up what the limit of the reports admits. */
async function exhaust(page) {
  for (let n = 0; n < 2; n += 1) {
    await page.goto(`${site}/reports/${n}`);
    assert.equal(await heading(page), "Page of the application");
  }
}

/** A worker that stops at two thirds, so that the page can be looked at. */
const slow = () => {
  window.Worker = class {
    postMessage({ max, first }) {
      if (first === 0) setTimeout(() => this.onmessage({ data: { tried: Math.round(max * 0.62) } }), 50);
    }
    terminate() {}
  };
};

const looks = {
  light: { width: 1100, height: 700, scheme: "light", language: "en" },
  dark: { width: 1100, height: 700, scheme: "dark", language: "en" },
  phone: { width: 360, height: 640, scheme: "light", language: "de", isMobile: true, deviceScaleFactor: 2 },
};

const stories = {
  /** A limit is exceeded, the page solves the challenge, and the GET is repeated. */
  async requests(browser) {
    const page = await browser.newPage();
    const quiet = listen(page);
    await exhaust(page);
    const statuses = [];
    page.on("response", (response) => {
      if (response.url().endsWith("/reports/third?a=b")) statuses.push(response.status());
    });
    await page.goto(`${site}/reports/third?a=b`);
    await reads(page, "Page of the application");
    assert.equal(page.url(), `${site}/reports/third?a=b`);
    assert.deepEqual(statuses, [429, 200]);
    const [cookie, ...others] = await page.cookies();
    assert.equal(others.length, 0);
    const { name, httpOnly, sameSite, path } = cookie;
    assert.deepEqual({ name, httpOnly, sameSite, path }, {
      name: "palisade-request", httpOnly: true, sameSite: "Lax", path: "/",
    });
    assert.ok((await page.content()).includes("no cookies"), "the application does not see the pass");
    quiet();
  },

  /** Wrong passwords lead to the page, and the page back to the form. */
  async login(browser) {
    const page = await browser.newPage();
    const quiet = listen(page);
    const attempt = async (password) => {
      await page.goto(`${site}/login`);
      await page.type("input[name=email]", "ann");
      await page.type("input[name=password]", password);
      const answered = page.waitForNavigation();
      await page.click("button");
      return (await answered).status();
    };
    let status = 401;
    for (let n = 0; n < 12 && status === 401; n += 1) status = await attempt("wrong");
    assert.equal(status, 429);
    await page.waitForFunction(() => document.querySelector("h1")?.textContent === "Login", { timeout: PATIENCE });
    assert.equal(page.url(), `${site}/login`);
    await page.type("input[name=email]", "ann");
    await page.type("input[name=password]", "right");
    const answered = page.waitForNavigation();
    await page.click("button");
    assert.equal((await answered).status(), 200);
    assert.equal(page.url(), `${site}/home`);
    quiet();
  },

  /** Every look of the page: nothing is cut off, and nothing keeps anybody from using it. */
  async looks(browser) {
    await exhaust(await browser.newPage());
    for (const [name, look] of Object.entries(looks)) {
      const page = await browser.newPage();
      await page.setViewport(look);
      await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: look.scheme }]);
      await page.setExtraHTTPHeaders({ "Accept-Language": look.language });
      await page.evaluateOnNewDocument(slow);
      await page.goto(`${site}/reports/look`);
      await page.waitForFunction(() => document.getElementById("progress").value > 500);
      await accessible(page, name);
      await fits(page, name);
      assert.equal(await page.$eval("html", (element) => element.lang), look.language);
      await page.screenshot({ path: join(PICTURES, `challenge-${name}.png`) });
      await page.close();
    }
  },

  /** Without scripts the page says what to do. */
  async noscript(browser) {
    const page = await browser.newPage();
    await exhaust(page);
    await page.setJavaScriptEnabled(false);
    await page.setViewport(looks.light);
    await page.goto(`${site}/reports/plain`);
    const text = await page.$eval("noscript", (element) => element.textContent);
    assert.match(text, /needs JavaScript.*try again without it in \d+ (minutes|seconds)/s);
    assert.equal(await page.$eval("#work", (element) => element.hidden), true);
  },

  /** What goes wrong is said, and the keyboard alone leads on. */
  async failures(browser) {
    const page = await browser.newPage();
    await exhaust(page);
    await page.setRequestInterception(true);
    let is_down = true;
    page.on("request", (request) => {
      if (is_down && request.url() === `${site}${ANSWER}`) request.abort("connectionreset");
      else request.continue();
    });
    await page.setViewport(looks.light);
    await page.goto(`${site}/reports/down`);
    await page.waitForSelector("#again:not([hidden])", { timeout: PATIENCE });
    await accessible(page, "the failed check");
    await reads(page, "The server cannot be reached.");
    assert.equal(await page.evaluate(() => document.activeElement.id), "again");
    is_down = false;
    await page.keyboard.press("Enter");
    await reads(page, "Page of the application");
  },

  /** The widget of a provider is shown, and its token is taken. */
  async provider(browser) {
    const page = await browser.newPage();
    const provider = "https://challenges.cloudflare.com/";
    const quiet = listen(page, [provider]);
    await exhaust(page);
    await page.setRequestInterception(true);
    page.on("request", (request) => {
      if (!request.url().startsWith(provider)) return request.continue();
      const body = `window.turnstile = { render(place, options) {
        place.textContent = options.sitekey + " " + options.action;
        setTimeout(() => options.callback("a-token-of-turnstile"), 300);
      } }; palisadeReady();`;
      return request.respond({ contentType: "text/javascript", body });
    });
    await page.goto(`${site}/reports/widget`);
    await reads(page, "Page of the application");
    quiet();
  },
};

const story = stories[process.argv[2]];
assert.ok(story, "no such story");
const browser = await puppeteer.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--lang=en"],
});
try {
  await story(browser);
} finally {
  await browser.close();
}
