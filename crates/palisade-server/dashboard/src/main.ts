// The page: the door, or what is behind it.

import "./style.css";
import { session, signOut, whenSignedOut, type Role } from "./api";
import { fill, h, say, write } from "./dom";
import icon from "./icon.svg";
import { Live } from "./live";
import { Blocks } from "./views/blocks";
import { Budgets } from "./views/budgets";
import { Lookup } from "./views/lookup";
import { LEVELS, Overview } from "./views/overview";
import { Policy } from "./views/policy";
import { signInView } from "./views/sign_in";

const page = document.getElementById("page") as HTMLElement;
let live: Live | null = null;

type Name = "overview" | "lookup" | "blocks" | "budgets" | "policy";

const TITLES: Record<Name, string> = {
  overview: "Overview",
  lookup: "Look up",
  blocks: "Blocks",
  budgets: "Budgets",
  policy: "Policy",
};

function door(): void {
  live?.stop();
  live = null;
  document.title = "Sign in – Palisade";
  fill(page, signInView((role) => void inside(role)));
}

async function inside(role: Role): Promise<void> {
  const views = {
    lookup: new Lookup(role),
    blocks: new Blocks(role),
    budgets: new Budgets(role),
    policy: new Policy(),
  };
  const status = h("p", { class: "status" });
  const notice = h("p", { class: "notice", hidden: true });
  const links = (Object.keys(TITLES) as Name[]).map((name) => h("a", { href: `#/${name}` }, TITLES[name]));
  const main = h("main", { id: "main" });
  const current = (): Name => {
    const name = location.hash.slice(2) as Name;
    return name in TITLES ? name : "overview";
  };
  let level = 0;
  const changed = (): void => {
    if (live === null) return;
    const { frame } = live;
    if (!live.connected) fill(status, h("span", { class: "state bad" }, "not connected"), " reconnecting");
    else if (frame !== null) {
      const now = frame.health.degradation_level;
      if (now !== level) say(`Degradation level ${now}: ${LEVELS[now] ?? ""}`);
      level = now;
      const kind = now === 0 ? "good" : now === 1 ? "warn" : "bad";
      fill(
        status,
        h("span", { class: `state ${kind}` }, LEVELS[now] ?? "unknown"),
        ` revision ${frame.policy.revision}, version ${frame.version}`,
      );
      views.lookup.know(frame.policy.tiers);
    }
    if (current() === "overview") overview.draw();
    if (current() === "policy" && frame !== null) views.policy.draw(frame);
    if (current() === "blocks") views.blocks.tick();
    if (current() === "budgets") views.budgets.tick(frame);
  };
  const restarted = (): void => {
    const words = "The service was restarted: the history starts anew.";
    write(notice, words);
    notice.hidden = false;
    say(words);
  };
  live = new Live(changed, restarted, door);
  const overview = new Overview(live);
  const go = (takesFocus: boolean): void => {
    const name = current();
    for (const [i, link] of links.entries()) {
      if (Object.keys(TITLES)[i] === name) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    document.title = `${TITLES[name]} – Palisade`;
    const view = name === "overview" ? overview : views[name];
    fill(main, view.element);
    if (name === "blocks") views.blocks.open();
    if (name === "budgets") views.budgets.open();
    changed();
    if (takesFocus) main.querySelector<HTMLElement>("h1")?.focus();
  };
  const leave = h("button", { type: "button" }, "Sign out");
  leave.addEventListener("click", () => void signOut().finally(door));
  fill(
    page,
    h(
      "header",
      {},
      h("a", { class: "brand", href: "#/overview" }, h("img", { src: icon, alt: "", width: "28", height: "28" }), "Palisade"),
      h("nav", { "aria-label": "Views" }, ...links),
      h("div", { class: "who" }, h("span", {}, role), leave),
    ),
    notice,
    main,
    h("footer", {}, status),
  );
  window.onhashchange = () => go(true);
  go(false);
  await live.start().catch((error: Error) => say(error.message));
  changed();
}

whenSignedOut(door);

// The address names the view, so that a link within the page cannot.
document.querySelector(".skip")?.addEventListener("click", (event) => {
  event.preventDefault();
  const main = document.getElementById("main");
  main?.setAttribute("tabindex", "-1");
  main?.focus();
});

session()
  .then((role) => (role === "nobody" ? door() : inside(role)))
  .catch(() => door());
