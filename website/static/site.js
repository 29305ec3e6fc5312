// The navigation is longer than most screens: bring the page that is shown into sight in it.
document.addEventListener("DOMContentLoaded", () => {
  const here = document.querySelector(".sidebar-tree .current-page");
  const list = document.querySelector(".sidebar-scroll");
  if (here && list) {
    const place = here.getBoundingClientRect().top - list.getBoundingClientRect().top;
    list.scrollTop += place - list.clientHeight / 2;
  }
});

// A long name in a table would make its column as wide; it may break at its punctuation.
document.addEventListener("DOMContentLoaded", () => {
  for (const code of document.querySelectorAll("article td code")) {
    const texts = document.createTreeWalker(code, NodeFilter.SHOW_TEXT);
    const found = [];
    while (texts.nextNode()) found.push(texts.currentNode);
    for (const text of found) {
      const parts = text.data.split(/(?<=[\/_(,=])(?=.)|(?=\.\w)/);
      text.replaceWith(...parts.flatMap((part, n) => (n ? [document.createElement("wbr"), part] : [part])));
    }
  }
});
