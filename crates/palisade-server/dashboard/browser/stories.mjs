// What a person does with the dashboard, in a real Chromium. `node stories.mjs STORY` plays
// one story and fails with what went wrong. The service runs already; where it is, and how to
// get in, stands in the environment.

import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import puppeteer from "puppeteer-core";

const { DASHBOARD_URL: home, DECIDE_URL: decide, OPERATOR_TOKEN, VIEWER_TOKEN, PICTURES, READY } = process.env;
const axeSource = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

const PATIENCE = 45_000;

/** Everything that a page said and should not have. */
function listen(page, expected = []) {
  const said = [];
  page.on("console", (message) => {
    if (["error", "warn"].includes(message.type())) said.push(`${message.text()} ${message.location().url ?? ""}`);
  });
  page.on("pageerror", (error) => said.push(String(error)));
  page.on("request", (request) => {
    if (!request.url().startsWith(home)) said.push(`asked for ${request.url()}`);
  });
  return () => {
    const wrong = said.filter((line) => !expected.some((known) => line.includes(known)));
    assert.deepEqual(wrong, []);
  };
}

async function signIn(page, token) {
  await page.goto(home, { waitUntil: "load" });
  await page.waitForSelector("#token");
  await page.type("#token", token);
  await page.keyboard.press("Enter");
}

async function inside(page, token = OPERATOR_TOKEN) {
  await signIn(page, token);
  await page.waitForSelector("nav a");
}

async function view(page, name) {
  await page.click(`nav a[href="#/${name}"]`);
  await page.waitForFunction(
    (wanted) => document.querySelector("nav a[aria-current]")?.getAttribute("href") === `#/${wanted}`,
    { timeout: PATIENCE },
    name,
  );
}

const text = (page, selector) => page.$eval(selector, (element) => element.textContent);

const hears = (page, words) =>
  page.waitForFunction((wanted) => document.body.textContent.includes(wanted), { timeout: PATIENCE }, words);

/** Nobody has to scroll sideways. */
async function fits(page, what) {
  const [scroll, client] = await page.evaluate(() => [
    document.documentElement.scrollWidth,
    document.documentElement.clientWidth,
  ]);
  assert.ok(scroll <= client, `${what}: ${scroll} wide in ${client}`);
}

/** Nothing serious stands in the way of anybody. */
async function accessible(page, what) {
  const session = await page.createCDPSession();
  // Evaluated by the browser itself: the page's own policy would not let it in.
  await session.send("Runtime.evaluate", { expression: axeSource });
  const found = await page.evaluate(async () => {
    const { violations } = await window.axe.run(document, { resultTypes: ["violations"] });
    return violations
      .filter(({ impact }) => impact === "serious" || impact === "critical")
      .map(({ id, nodes }) => `${id}: ${nodes.map((node) => node.html).join(" ")}`);
  });
  assert.deepEqual(found, [], what);
}

async function picture(page, name) {
  await page.screenshot({ path: join(PICTURES, `${name}.png`), type: "png" });
}

const themed = (page, value) => page.emulateMediaFeatures([{ name: "prefers-color-scheme", value }]);

async function fail(account) {
  const body = JSON.stringify({ ip: "203.0.113.77", account, device: { client_id: "d1" } });
  const answer = await fetch(`${decide}/v1/guard/login/failure`, { method: "POST", body });
  return (await answer.json()).decision;
}

async function mayLogIn(account) {
  const body = JSON.stringify({ ip: "203.0.113.77", account, device: { client_id: "d1" } });
  const answer = await fetch(`${decide}/v1/guard/login/check`, { method: "POST", body });
  return (await answer.json()).decision === "allow";
}

/** The reservation of this many tokens; undefined if there is no room. */
async function reserve(org, tokens) {
  const facts = { ip: "203.0.113.77", org, method: "POST", path: "/llm", costs: { tokens } };
  const answer = await fetch(`${decide}/v1/reserve`, { method: "POST", body: JSON.stringify(facts) });
  return (await answer.json()).reservation;
}

async function lookUp(page, kind, value) {
  await view(page, "lookup");
  await page.select("#kind", kind);
  await page.type("#value", value);
  await page.keyboard.press("Enter");
  await page.waitForSelector("[data-verdict]", { timeout: PATIENCE });
}

const stories = {
  /** Figures move; every view fits, in both themes, for everybody. */
  async overview(browser) {
    const page = await browser.newPage();
    const quiet = listen(page);
    await page.setViewport({ width: 1280, height: 900 });
    await inside(page);
    const figure = '[data-figure="decisions"]';
    const moves = (before) =>
      page.waitForFunction(
        (selector, was) => {
          const now = document.querySelector(selector)?.textContent;
          return now !== undefined && now !== was && Number(now) > 0;
        },
        { timeout: PATIENCE },
        figure,
        before,
      );
    await moves("0");
    await moves(await text(page, figure));
    await hears(page, "reports-per-user");
    await page.waitForSelector("canvas");
    await hears(page, "Counting since");
    for (const label of ["1 hour", "1 day", "5 minutes"]) {
      const handle = await page.waitForSelector(`::-p-xpath(//button[.="${label}"])`);
      await handle.click();
      assert.equal(await handle.evaluate((button) => button.getAttribute("aria-pressed")), "true");
    }
    for (const theme of ["light", "dark"]) {
      await themed(page, theme);
      for (const name of ["overview", "lookup", "blocks", "budgets", "policy"]) {
        await page.setViewport({ width: 1280, height: 900 });
        await view(page, name);
        await accessible(page, `${name}, ${theme}`);
        await fits(page, `${name} on a screen`);
        await page.setViewport({ width: 360, height: 740 });
        await fits(page, `${name} on a phone`);
      }
      await accessible(page, `a phone, ${theme}`);
    }
    // By keyboard alone: the first stop leads past the navigation.
    await page.setViewport({ width: 1280, height: 900 });
    await page.reload({ waitUntil: "load" });
    await page.waitForSelector("nav a");
    await page.keyboard.press("Tab");
    assert.equal(await page.evaluate(() => document.activeElement?.className), "skip");
    await page.keyboard.press("Enter");
    assert.equal(await page.evaluate(() => document.activeElement?.id), "main");
    await view(page, "blocks");
    assert.equal(await page.evaluate(() => document.activeElement?.tagName), "H1");
    await themed(page, "light");
    await view(page, "overview");
    await hears(page, "reports-per-user");
    await new Promise((resolve) => setTimeout(resolve, 8_000));
    await picture(page, "dashboard-overview");
    await themed(page, "dark");
    await page.setViewport({ width: 360, height: 740, deviceScaleFactor: 2 });
    await new Promise((resolve) => setTimeout(resolve, 1_500));
    await picture(page, "dashboard-phone");
    quiet();
  },

  /** Somebody guesses a password. It is seen, found, explained and lifted. */
  async attack(browser) {
    const account = "canary-account";
    const page = await browser.newPage();
    const quiet = listen(page);
    await page.setViewport({ width: 1280, height: 900 });
    await themed(page, "light");
    await inside(page);
    for (let n = 0; n < 12; n += 1) await fail(account);
    assert.equal(await mayLogIn(account), false);
    await hears(page, "G-");
    await picture(page, "attack-1-seen");
    await view(page, "blocks");
    await hears(page, "account login");
    await picture(page, "attack-2-blocked");
    await lookUp(page, "account", account);
    assert.notEqual(await page.$eval("[data-verdict]", (element) => element.dataset.verdict), "allow");
    await hears(page, "palisade blocks lift");
    assert.equal(await page.$eval("#value", (input) => input.value), "", "what was typed is gone");
    assert.ok(!(await page.content()).includes(account), "and nowhere to be seen");
    await accessible(page, "what was found");
    await picture(page, "attack-3-explained");
    await page.setViewport({ width: 360, height: 740 });
    await fits(page, "what was found, on a phone");
    await page.setViewport({ width: 1280, height: 900 });
    await page.type("#reason", "the owner called");
    const lift = await page.waitForSelector('::-p-xpath(//button[.="Lift and clear the score"])');
    await lift.click();
    await hears(page, "the score cleared");
    await page.waitForSelector('[data-verdict="allow"]', { timeout: PATIENCE });
    assert.equal(await mayLogIn(account), true, "the next attempt passes");
    await picture(page, "attack-4-lifted");
    quiet();
  },

  /** A budget fills with what is reserved; a reservation is released, and its units come back. */
  async budgets(browser) {
    const page = await browser.newPage();
    const quiet = listen(page);
    await page.setViewport({ width: 1280, height: 900 });
    await themed(page, "light");
    await inside(page);
    await view(page, "budgets");
    await hears(page, "Nothing is reserved.");
    const held = await reserve("canary-org", 4_000);
    assert.ok(held !== undefined, "it fits");
    await reserve("canary-other-org", 1_500);
    await fetch(`${decide}/v1/settle`, {
      method: "POST",
      body: JSON.stringify({ reservation: held, costs: { tokens: 3_000 } }),
    });
    await reserve("canary-org", 6_000);
    assert.equal(await reserve("canary-org", 6_000), undefined, "9,000 of 10,000 are used");
    await hears(page, "9,000 of 10,000 tokens, 6,000 of it reserved; 1,000 left");
    await hears(page, "2 held.");
    await accessible(page, "budgets");
    await picture(page, "dashboard-budgets");
    await page.setViewport({ width: 360, height: 740 });
    await fits(page, "budgets on a phone");
    await accessible(page, "budgets on a phone");
    await page.setViewport({ width: 1280, height: 900 });
    const release = await page.waitForSelector('::-p-xpath(//tr[contains(., "6,000 tokens")]//button[.="Release"])');
    await release.click();
    await page.waitForSelector("#dialog-reason", { timeout: PATIENCE });
    await page.type("#dialog-reason", "the job was cancelled");
    await page.keyboard.press("Enter");
    await hears(page, "1 held.");
    assert.notEqual(await reserve("canary-org", 6_000), undefined, "there is room again");
    quiet();
  },

  /** Who may not come in, who may not act, and what another page may not do. */
  async roles(browser) {
    const page = await browser.newPage();
    const quiet = listen(page, ["401", "403"]);
    await signIn(page, "wrong");
    await hears(page, "not accepted");
    await accessible(page, "the door");
    await page.setViewport({ width: 360, height: 740 });
    await fits(page, "the door on a phone");
    await page.setViewport({ width: 1280, height: 900 });
    await page.$eval("#token", (input) => {
      input.value = "";
    });
    await page.type("#token", VIEWER_TOKEN);
    await page.keyboard.press("Enter");
    await page.waitForSelector("nav a");
    const cookies = await page.cookies();
    assert.equal(cookies.length, 1);
    const [cookie] = cookies;
    assert.deepEqual([cookie.httpOnly, cookie.sameSite], [true, "Strict"]);
    assert.ok(!cookie.domain.startsWith("."), "of this host only");
    assert.equal(await page.evaluate(() => document.cookie), "", "out of reach of scripts");
    await fail("a1");
    await fail("a1");
    await lookUp(page, "account", "a1");
    await hears(page, "Your role can read");
    assert.equal(await page.$("#reason"), null);
    const status = (method, path, headers) =>
      page.evaluate(
        async (method, path, headers) =>
          (await fetch(path, { method, headers, body: '{"account":"a1","reason":"r"}' })).status,
        method,
        path,
        headers,
      );
    assert.equal(await status("DELETE", "/admin/blocks", {}), 403, "no token of the page");
    const leave = await page.waitForSelector('::-p-xpath(//button[.="Sign out"])');
    await leave.click();
    await page.waitForSelector("#token");
    assert.deepEqual(await page.cookies(), []);
    // An operator's page: its cookie alone changes nothing either.
    await inside(page);
    assert.equal(await status("DELETE", "/admin/blocks", { "x-csrf-token": "0" }), 403);
    // A reload stays signed in.
    await page.reload({ waitUntil: "load" });
    await page.waitForSelector("nav a");
    quiet();
  },

  /** A stricter policy runs beside the live one: where it differs is shown, and grows. */
  async candidate(browser) {
    const page = await browser.newPage();
    const quiet = listen(page);
    await inside(page);
    const newly = (least) =>
      page.waitForFunction(
        (wanted) => {
          const shown = /([\d,]+) newly denied/.exec(document.body.textContent);
          const count = shown === null ? 0 : Number(shown[1].replaceAll(",", ""));
          return count > wanted && count;
        },
        { timeout: PATIENCE },
        least,
      );
    const first = await (await newly(0)).jsonValue();
    await newly(first);
    const card = await page.waitForSelector('::-p-xpath(//section[h2[.="Candidate policy"]])');
    const words = await card.evaluate((element) => element.textContent);
    assert.match(words, /Revision \d+, compared on [\d,]+ decisions since/);
    assert.match(words, /two-for-each/, "the limit that refuses");
    assert.doesNotMatch(words, /198\.51\.100/);
    await accessible(page, "a candidate");
    await page.setViewport({ width: 360, height: 740 });
    await fits(page, "a candidate on a phone");
    quiet();
  },

  /** The process is restarted under a page: who signs in again hears that history starts anew. */
  async restart(browser) {
    const page = await browser.newPage();
    const quiet = listen(page, ["ERR_", "401"]);
    await inside(page);
    await hears(page, "Counting since");
    const says = "The service was restarted: the history starts anew.";
    assert.ok(!(await text(page, "body")).includes(says));
    writeFileSync(READY, "");
    // Sessions end with the process.
    await page.waitForSelector("#token", { timeout: PATIENCE });
    await page.type("#token", OPERATOR_TOKEN);
    await page.keyboard.press("Enter");
    await page.waitForSelector("nav a", { timeout: PATIENCE });
    await hears(page, says);
    await hears(page, "Counting since");
    await accessible(page, "after a restart");
    quiet();
  },

  /** Ten thousand blocks are paged through; a thousand limits are shown in bounds. */
  async many(browser) {
    const page = await browser.newPage();
    const quiet = listen(page);
    await inside(page);
    await view(page, "blocks");
    await hears(page, "and there are more");
    const first = await page.$$eval("tbody tr", (rows) => rows.length);
    assert.ok(first >= 1 && first <= 200, `${first} rows`);
    const ids = () => text(page, "tbody tr code");
    const before = await ids();
    for (let n = 2; n <= 5; n += 1) {
      const next = await page.waitForSelector('::-p-xpath(//button[.="Next page"])');
      await next.click();
      await hears(page, `Page ${n}:`);
    }
    assert.notEqual(await ids(), before);
    await accessible(page, "many blocks");
    await page.setViewport({ width: 360, height: 740 });
    await fits(page, "many blocks on a phone");
    await page.setViewport({ width: 1280, height: 900 });
    await lookUp(page, "ip", "10.0.0.1");
    await hears(page, "The first 200");
    await view(page, "policy");
    await page.waitForFunction(() => /Limits1,000/.test(document.body.textContent), { timeout: PATIENCE });
    // One of them is lifted where it stands.
    await view(page, "blocks");
    await hears(page, "Page 1:");
    const lift = await page.waitForSelector('::-p-xpath((//button[.="Lift"])[1])');
    await lift.click();
    await page.waitForSelector("dialog[open]");
    await accessible(page, "the question for a reason");
    await page.type("#dialog-reason", "tested");
    await page.keyboard.press("Enter");
    await hears(page, "The block was lifted.");
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
