// Elements without a framework, and without ever parsing text as HTML.

type Child = Node | string | number | null | undefined | false;
type Attributes = Record<string, string | number | boolean | undefined | ((event: Event) => void)>;

export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== undefined && value !== false) element.setAttribute(name, String(value));
  }
  append(element, children);
  return element;
}

function append(element: Element, children: Child[]): void {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    element.append(typeof child === "number" ? String(child) : child);
  }
}

/** Puts these in the place of what is there. */
export function fill(element: Element, ...children: Child[]): void {
  element.replaceChildren();
  append(element, children);
}

/** Sets a text only if it differs: what did not change is not drawn again. */
export function write(element: Element, text: string): void {
  if (element.textContent !== text) element.textContent = text;
}

/** A card with a heading. */
export function card(title: string, hint: string, ...children: Child[]): HTMLElement {
  return h(
    "section",
    { class: "card" },
    h("h2", {}, title),
    hint !== "" && h("p", { class: "hint" }, hint),
    ...children,
  );
}

/** A bar that is filled to a share between 0 and 1. */
export function bar(share: number, kind = ""): HTMLElement {
  const inner = h("span", { class: `filled ${kind}` });
  inner.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return h("span", { class: "bar", "aria-hidden": "true" }, inner);
}

/** Tells people who listen. */
export function say(text: string): void {
  const said = document.getElementById("said");
  if (said !== null) said.textContent = text;
}
