//! A colour for each party: the words of a writer before its first comma or colon. A field without a writer has the neutral colour of "none".

use std::fmt::{self, Formatter};

use crate::escape::xml as text;

pub(super) struct Parties {
    named: Vec<(&'static str, String)>,
}

impl Parties {
    pub fn new(writers: impl Iterator<Item = &'static str>) -> Self {
        let mut parties = Self { named: Vec::new() };
        let mut others = 0;
        for writer in writers {
            let party = party(writer);
            if party.is_empty() || parties.named.iter().any(|(known, _)| *known == party) {
                continue;
            }
            // Other parties have a colour of this map.
            let class = match party {
                "host" => "host".to_owned(),
                "device" => "device".to_owned(),
                "none" => "none".to_owned(),
                _ => {
                    others += 1;
                    format!("other{}", (others - 1) % OTHERS)
                }
            };
            parties.named.push((party, class));
        }
        parties
    }

    /// Returns `none` for a writer without a party.
    pub fn class(&self, writer: &str) -> &str {
        let party = party(writer);
        self.named.iter().find(|(known, _)| *known == party).map_or("none", |(_, class)| class)
    }

    /// In as many lines as needed.
    pub fn legend(&self, left: usize, right: usize, top: usize, f: &mut Formatter<'_>) -> fmt::Result {
        let (mut x, mut y) = (left, top);
        for (party, class) in &self.named {
            let width = 44 + party.chars().count() * 7;
            if x > left && x + width > right {
                (x, y) = (left, y + 15);
            }
            writeln!(f, r#"<g class="{class}"><path d="M{x} {}h14v12h-14Z"/></g>"#, y - 10)?;
            writeln!(f, r#"<text class="muted" x="{}" y="{y}">{}</text>"#, x + 20, text(party))?;
            x += width;
        }
        Ok(())
    }
}

fn party(writer: &str) -> &str {
    writer.split([',', ':']).next().unwrap_or(writer).trim()
}

const OTHERS: usize = 5;

pub(super) const STYLE: &str = "
text{font-family:ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;fill:#1f2328}
.title{font-size:17px;font-weight:700}.name{font-weight:600}
.muted,.mark{font-size:11px}.mark{font-weight:700}.muted,.kind{fill:#57606a}.kind{fill:#424a53}
.mid{text-anchor:middle}.end{text-anchor:end}
.page{fill:#ffffff}.line{fill:none;stroke:#8c959f}
g path{stroke-width:1.2;stroke-linejoin:round}
.host path{fill:#d4e6ff;stroke:#3b76bd}.device path{fill:#ffe3c4;stroke:#b86a1c}.none path{fill:#f1f2f4;stroke:#a4abb3;stroke-dasharray:4 3}
.other0 path{fill:#d5f0d8;stroke:#3a8a48}.other1 path{fill:#e9defc;stroke:#7a52c2}.other2 path{fill:#fcdce8;stroke:#b5416f}
.other3 path{fill:#cdf0f0;stroke:#21838a}.other4 path{fill:#fbf0bd;stroke:#93780c}
@media (prefers-color-scheme:dark){
text{fill:#e6edf3}.muted{fill:#9198a1}.kind{fill:#c3ccd6}.page{fill:#0d1117}.line{stroke:#6e7681}
.host path{fill:#17365c;stroke:#6cabf0}.device path{fill:#57330f;stroke:#eda458}.none path{fill:#1d2127;stroke:#6e7681}
.other0 path{fill:#153f1f;stroke:#62c073}.other1 path{fill:#3a2664;stroke:#b08ef2}.other2 path{fill:#561b38;stroke:#ec82b0}
.other3 path{fill:#0e4048;stroke:#4fc2cb}.other4 path{fill:#45390a;stroke:#d8bc48}
}";
