// SPDX-License-Identifier: GPL-2.0-or-later
// Loads the content again, at most once in two seconds, when something was announced. The page is whole without it.
"use strict";
const main = document.querySelector("main[data-live]");
if (main) {
  let due = false;
  // What the reader is at is not taken away.
  const isInUse = () =>
    main.contains(document.activeElement) || String(getSelection()) || main.querySelector("details[open]");
  const refresh = async () => {
    due = false;
    if (isInUse()) return;
    const answer = await fetch(location.href).catch(() => null);
    if (!answer || !answer.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (isInUse()) return;
    main.replaceChildren(...page.querySelector("main").childNodes);
    document.querySelector("footer").replaceChildren(...page.querySelector("footer").childNodes);
  };
  new EventSource("/pushes/live").onmessage = () => {
    if (!due) setTimeout(refresh, 2000);
    due = true;
  };
}
