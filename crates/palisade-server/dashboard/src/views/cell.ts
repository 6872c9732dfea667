// A cell of a table that becomes a list of labelled lines on a narrow screen.

import { h } from "../dom";

export function cell(label: string, ...children: Node[]): HTMLElement {
  return h("td", { "data-label": label }, h("div", {}, ...children));
}
