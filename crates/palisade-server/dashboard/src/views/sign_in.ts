// The door.

import { Refused, signIn, type Role } from "../api";
import { h, write } from "../dom";

export function signInView(entered: (role: Role) => void): HTMLElement {
  const problem = h("p", { class: "problem", role: "alert" });
  const input = h("input", {
    id: "token",
    type: "password",
    name: "token",
    required: true,
    autocomplete: "current-password",
    spellcheck: "false",
  });
  const button = h("button", { class: "primary", type: "submit" }, "Sign in");
  const submit = async (): Promise<void> => {
    button.disabled = true;
    write(problem, "");
    try {
      entered(await signIn(input.value));
    } catch (error) {
      const refused = error instanceof Refused && (error.status === 401 || error.status === 403);
      write(problem, refused ? "This credential is not accepted." : (error as Error).message);
      input.select();
    } finally {
      button.disabled = false;
    }
  };
  const form = h(
    "form",
    {
      method: "post",
      submit: (event) => {
        event.preventDefault();
        void submit();
      },
    },
    h("label", { for: "token" }, "Admin credential"),
    input,
    button,
    problem,
  );
  const view = h(
    "main",
    { id: "main", class: "door" },
    h(
      "div",
      { class: "card" },
      h("h1", {}, "Palisade"),
      h("p", { class: "hint" }, "Sign in with the admin or viewer token, or with a verified token that has one of these roles."),
      form,
    ),
  );
  queueMicrotask(() => input.focus());
  return view;
}
