"""What the figures share: words, lines and colours that read well on a light page and on a dark one."""

FONT = '13px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif'
# Name: as a light page has it, as a dark one.
COLOURS = {"ink": ("#1f2328", "#e6edf3"), "faint": ("#59636e", "#9198a1"), "page": ("#ffffff", "#0d1117"),
           "rule": ("#d1d9e0", "#30363d"), "blue": ("#0969da", "#58a6ff"), "orange": ("#b35900", "#f0883e")}


def text(x, y, words, anchor="start", kind=None):
    kind = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{kind}>{words}</text>'


def line(x1, y1, x2, y2, kind):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def bar(x, y, width, height, kind):
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" class="{kind}"/>'


def style(rules):
    """CSS from rules as {"line.full": {"stroke": "blue"}}, whose colours change with the page."""
    def write(page):
        for selector, properties in rules.items():
            words = "; ".join(f"{name}: {COLOURS[value][page] if value in COLOURS else value}"
                              for name, value in properties.items() if page == 0 or value in COLOURS)
            if words:
                yield f"  {selector} {{ {words} }}"
    return "\n".join([*write(0), "  @media (prefers-color-scheme: dark) {", *(f"  {rule}" for rule in write(1)), "  }"])


COMMON = {"text": {"font": FONT, "fill": "ink"}, ".title": {"font-size": "16px", "font-weight": "600"},
          ".group": {"font-weight": "600"}, ".small": {"font-size": "12px", "fill": "faint"}, ".page": {"fill": "page"},
          ".grid": {"stroke": "rule", "stroke-width": "1"}, ".axis": {"stroke": "faint", "stroke-width": "1"}}


def document(width, height, title, description, rules, body):
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        'aria-labelledby="title description">',
        f'<title id="title">{title}</title>', f'<desc id="description">{description}</desc>',
        f"<style>\n{style({**COMMON, **rules})}\n</style>", '<rect width="100%" height="100%" class="page"/>',
        *body, "</svg>"]) + "\n"
