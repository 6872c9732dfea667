//! Tables of the guide (docs/guard.md) that tests compute.

use std::path::Path;

/// Asserts that docs/guard.md has exactly this table between the two marks of `name`.
pub(crate) fn section_is(name: &str, table: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guard.md");
    let page = std::fs::read_to_string(path).unwrap();
    let begin = format!("<!-- {name}: computed by a test -->\n\n");
    let (_, rest) = page
        .split_once(&begin)
        .unwrap_or_else(|| panic!("docs/guard.md has no mark for `{name}`"));
    let (written, _) = rest.split_once("\n<!-- end -->").unwrap();
    assert!(
        written == table,
        "docs/guard.md, `{name}`, must be\n{table}\nbut is\n{written}"
    );
}
