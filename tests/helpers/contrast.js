// Contrast ratios of the marked texts of a page. Source: WCAG 2.2, relative luminance and contrast ratio.
() => {
  const parts = (c) => c.match(/[\d.]+/g).slice(0, 3).map(Number);
  const light = (c) => { const [r, g, b] = parts(c).map(v => v / 255).map(
    v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const ground = (e) => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
    if (!/rgba\(.*, 0\)|transparent/.test(c)) return c; } return 'rgb(255,255,255)'; };
  return Array.from(document.querySelectorAll(
      '#annotated .s, #annotated .legend li .tag, #annotated small'))
    .map(e => { const [a, b] = [light(getComputedStyle(e).color), light(ground(e))];
      return [e.className, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)]; });
}
