//! A share such as `50%`.

use palisade_core::failure::fallback::Share;

use crate::document::decode::{Decode, Problem, Problems};
use crate::document::tree::Node;

/// A share of a limit from 1 to 99 percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Percent(pub(crate) Share);

impl Decode for Percent {
    fn kind() -> String {
        "share from `1%` to `99%`".into()
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        let percent = node.as_str().and_then(|text| text.strip_suffix('%'));
        let percent = percent.and_then(|digits| digits.trim_end().parse().ok());
        let share = percent.filter(|percent| *percent < 100);
        let share = share.and_then(|percent| Share::new("under_attack", percent).ok());
        share.map(Self).ok_or_else(|| {
            vec![
                Problem::new("must be a share from `1%` to `99%`")
                    .hint("write for example `\"50%\"`"),
            ]
        })
    }
}
