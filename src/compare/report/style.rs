//! The style of the page: no font, script or picture from elsewhere; light and dark by the
//! reader's setting. Series colours are told apart with the usual defects of colour vision (Wong,
//! Nature Methods 8, 441, 2011), adjusted for contrast.

pub(super) const STYLE: &str = "
:root { color-scheme: light dark; --bg: #ffffff; --fg: #1b1f24; --soft: #57606a; --line: #d5dae0;
  --card: #f6f8fa; --good: #1a7f37; --warn: #8a5a00; --bad: #b3261e; --inside: #ffffff;
  --c0: #0072b2; --c1: #c2500a; --c2: #007a5a; --c3: #9a4a83; --c4: #7a6a00; --c5: #2b7fb8;
  --c6: #5b5b5b; --c7: #8b3a3a; }
@media (prefers-color-scheme: dark) { :root { --bg: #0f1318; --fg: #e6eaf0; --soft: #9aa5b1;
  --line: #313943; --card: #171d24; --good: #56d07a; --warn: #e3b341; --bad: #ff7b72;
  --inside: #0b0e12; --c0: #58a6e0; --c1: #f0883e; --c2: #3fc29a; --c3: #d48ac0; --c4: #d4c04a;
  --c5: #8cc8f0; --c6: #a8b0b8; --c7: #e08a8a; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 24px 20px 60px; max-width: 1240px; background: var(--bg);
  color: var(--fg); font: 15px/1.5 system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans',
  sans-serif; }
h1 { font-size: 26px; margin: 0 0 4px; } h2 { font-size: 20px; margin: 40px 0 10px;
  border-bottom: 1px solid var(--line); padding-bottom: 4px; } 
h3 { font-size: 16px; margin: 0 0 2px; }
p, ul { margin: 6px 0; } ul { padding-left: 22px; } .soft { color: var(--soft); }
.verdict { display: inline-block; padding: 2px 10px; border-radius: 12px; font-weight: 600;
  border: 1px solid currentColor; } .valid { color: var(--good); } 
.qualified { color: var(--warn); }
.invalid { color: var(--bad); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; margin: 10px 0;
  font-variant-numeric: tabular-nums; } th, td { text-align: left; padding: 5px 10px;
  border-bottom: 1px solid var(--line); white-space: nowrap; vertical-align: top; }
th { color: var(--soft); font-weight: 600; } td.n, th.n { text-align: right; }
td.wide { white-space: normal; min-width: 260px; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(520px, 100%), 1fr));
  gap: 18px; margin: 14px 0; } figure { margin: 0; background: var(--card); border-radius: 8px;
  padding: 14px 14px 8px; border: 1px solid var(--line); } figure p { margin: 0 0 8px;
  font-size: 13px; color: var(--soft); } svg { width: 100%; height: auto; display: block; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; font-size: 13px; margin: 4px 0 8px; }
.legend span::before { content: ''; display: inline-block; width: 11px; height: 11px;
  border-radius: 2px; margin-right: 6px; background: currentColor; vertical-align: -1px; }
.legend .h::before { background: none; border: 2px dashed currentColor; }
.legend b { color: var(--fg); font-weight: 400; }
svg text { font: 12px system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif; }
.tick { fill: var(--soft); } .axis-name { fill: var(--soft); } .name { fill: var(--fg); }
.inside { fill: var(--inside); font-weight: 600; } .grid { stroke: var(--line); stroke-width: 1; }
.axis { stroke: var(--soft); stroke-width: 1; } .line { fill: none; stroke-width: 2; }
.dash { stroke-dasharray: 5 4; } .range { stroke-width: 1.2; opacity: .6; } 
.mark { stroke: var(--card); stroke-width: 1; }
.why li { margin: 5px 0; } .wall { font-weight: 600; } details { margin: 8px 0; }
summary { cursor: pointer; color: var(--soft); }
";

/// Rules of the series' colours: as strokes, fills and text.
pub(super) fn colours() -> String {
    (0..super::svg::COLOURS)
        .map(|n| {
            format!(
                ".s{n} {{ stroke: var(--c{n}); }} .f{n} {{ fill: var(--c{n}); }} \
                 .t{n} {{ color: var(--c{n}); }}\n"
            )
        })
        .collect()
}
