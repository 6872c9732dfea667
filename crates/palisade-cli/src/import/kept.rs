//! Comments of the imported file, handed out at the items to which they belong.

use std::collections::VecDeque;

use super::yaml::Comment;

/// Comments in the order of the file, and the lines on which its items begin.
pub(super) struct KeptComments {
    comments: VecDeque<Comment>,
    items: Vec<usize>,
}

impl KeptComments {
    pub(super) fn new(mut comments: Vec<Comment>, mut items: Vec<usize>) -> Self {
        comments.sort_by_key(|comment| comment.about);
        items.sort_unstable();
        Self {
            comments: comments.into(),
            items,
        }
    }

    /// Takes the comments before the first item.
    pub(super) fn head(&mut self) -> Vec<String> {
        let first = self.items.first().copied().unwrap_or(usize::MAX);
        self.before(first)
    }

    /// Takes the comments about the item that begins on `line`, and those about earlier items that
    /// were not taken.
    pub(super) fn of_item(&mut self, line: usize) -> Vec<String> {
        let next = self.items.partition_point(|item| *item <= line);
        let end = self.items.get(next).copied().unwrap_or(usize::MAX);
        self.before(end)
    }

    /// Takes all remaining comments.
    pub(super) fn rest(&mut self) -> Vec<String> {
        self.comments
            .drain(..)
            .map(|comment| comment.text)
            .collect()
    }

    fn before(&mut self, end: usize) -> Vec<String> {
        let count = self.comments.partition_point(|comment| comment.about < end);
        let taken = self.comments.drain(..count);
        taken.map(|comment| comment.text).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_stay_with_their_item() {
        let comment = |about: usize, text: &str| Comment {
            about,
            text: text.to_owned(),
        };
        let comments = vec![
            comment(2, "head"),
            comment(5, "of five"),
            comment(6, "in five"),
            comment(9, "of nine"),
            comment(usize::MAX, "last"),
        ];
        let mut kept = KeptComments::new(comments, vec![5, 9]);
        assert_eq!(kept.head(), ["head"]);
        assert_eq!(kept.of_item(5), ["of five", "in five"]);
        assert_eq!(kept.of_item(9), ["of nine"]);
        assert_eq!(kept.rest(), ["last"]);
    }
}
