// Before anything is painted: the viewer's choice of light or dark, if there is one.
const chosen = localStorage.getItem("faultline-theme");
if (chosen) document.documentElement.dataset.theme = chosen;
