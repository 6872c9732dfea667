//! Bars for the terminal, in eighths of a character.

/// Characters of the longest bar.
const WIDTH: u64 = 32;
const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];

/// Returns a bar for `count`, where `most` has the full width; a count above zero is always
/// visible.
pub(super) fn bar(count: u64, most: u64) -> String {
    let eighths = length(count, most);
    let whole = usize::try_from(eighths / 8).unwrap_or(0);
    let rest = usize::try_from(eighths % 8).unwrap_or(0);
    format!("{}{}", "█".repeat(whole), EIGHTHS.get(rest).unwrap_or(&""))
}

/// Returns a bar for `events` with the refused part first, and the rest in a lighter shade.
pub(super) fn split_bar(events: u64, refused: u64, most: u64) -> String {
    let all = length(events, most).div_ceil(8);
    let dark = length(refused, most).div_ceil(8).min(all);
    let part = |sign: &str, count: u64| sign.repeat(usize::try_from(count).unwrap_or(0));
    part("█", dark) + &part("░", all - dark)
}

fn length(count: u64, most: u64) -> u64 {
    if most == 0 || count == 0 {
        return 0;
    }
    let eighths = u128::from(count) * u128::from(WIDTH) * 8 / u128::from(most);
    u64::try_from(eighths).unwrap_or(WIDTH * 8).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_their_share_and_never_invisible() {
        assert_eq!(bar(0, 10), "");
        assert_eq!(bar(1, 1_000_000), "▏");
        assert_eq!(bar(10, 10).chars().count(), 32);
        assert_eq!(split_bar(10, 5, 10), "█".repeat(16) + &"░".repeat(16));
        assert_eq!(split_bar(10, 0, 0), "");
    }
}
