// The navigation is longer than most screens: bring the page that is shown into sight in it.
document.addEventListener("DOMContentLoaded", () => {
  const here = document.querySelector(".sidebar-tree .current-page");
  const list = document.querySelector(".sidebar-scroll");
  if (here && list) {
    const place = here.getBoundingClientRect().top - list.getBoundingClientRect().top;
    list.scrollTop += place - list.clientHeight / 2;
  }
});
