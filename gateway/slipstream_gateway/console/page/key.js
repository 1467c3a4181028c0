// The admin key: requested when the gateway requires one, stored in this tab, sent with every call.

import { $, say } from "./dom.js";

const KEPT = "slipstream-admin-key";

export const headers = () => {
  const key = sessionStorage.getItem(KEPT);
  return key ? { authorization: `Bearer ${key}` } : {};
};

/** Resolves when the user has given a key. `why` is what the gateway said. */
export const askForKey = (why) =>
  new Promise((resolve) => {
    const dialog = $("key-dialog");
    say("key-why", `${why} A key with the scope "admin" is required; it is stored in this tab only.`);
    $("key").hidden = false;
    $("key-form").onsubmit = (event) => {
      event.preventDefault();
      sessionStorage.setItem(KEPT, $("key-value").value.trim());
      $("key-value").value = "";
      dialog.close();
      resolve();
    };
    if (!dialog.open) dialog.showModal();
  });
