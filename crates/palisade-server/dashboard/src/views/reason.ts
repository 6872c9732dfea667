// Every change has a reason, which the audit keeps.

import { h, write } from "../dom";

/** Asks for a reason; `null` if the person thinks better of it. */
export function askReason(title: string, then: (reason: string) => Promise<void>): void {
  const problem = h("p", { class: "problem", role: "alert" });
  const input = h("input", { id: "dialog-reason", required: true, maxlength: "400", autocomplete: "off" });
  const confirm = h("button", { class: "primary", type: "submit" }, title);
  const dialog = h(
    "dialog",
    { "aria-labelledby": "dialog-title" },
    h("h2", { id: "dialog-title" }, title),
    h(
      "form",
      {
        method: "dialog",
        submit: (event) => {
          event.preventDefault();
          confirm.disabled = true;
          then(input.value)
            .then(() => dialog.close())
            .catch((error: Error) => write(problem, error.message))
            .finally(() => {
              confirm.disabled = false;
            });
        },
      },
      h("label", { for: "dialog-reason" }, "Reason, for the audit"),
      input,
      problem,
      h(
        "div",
        { class: "buttons" },
        confirm,
        h("button", { type: "button", click: () => dialog.close() }, "Cancel"),
      ),
    ),
  );
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
