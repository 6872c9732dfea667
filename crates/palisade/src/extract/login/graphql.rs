//! Checks that a GraphQL document can carry only one guess at a password.
//!
//! One request may hold many guesses: several operations, aliases of one mutation, values written
//! into the document, variables of another name. The user name is read from a variable, so the
//! document must show that a login gets no other name.

/// A token of a document, as far as this module distinguishes them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Token<'d> {
    Name(&'d str),
    Mark(char),
    /// A number or a spread.
    Other,
}

/// True if the document is one operation in which one field has arguments, and the argument
/// `name` is given once, as the variable of that name: `login(email: $email, password: $password)`.
/// Values as text and fragments are refused with the rest: they can hold a guess as well.
pub(super) fn is_one_guess(document: &str, name: &str) -> bool {
    tokens(document).is_some_and(|tokens| {
        let Some((operation, arguments)) = parts(&tokens) else {
            return false;
        };
        let given = |tokens: &[Token<'_>]| {
            let begins = |pair: &&[Token<'_>]| pair == &[Token::Name(name), Token::Mark(':')];
            tokens.windows(2).filter(begins).count()
        };
        let variable = [
            Token::Name(name),
            Token::Mark(':'),
            Token::Mark('$'),
            Token::Name(name),
        ];
        let is_variable = arguments.windows(4).any(|four| four == variable);
        // Outside of the arguments, a name and a colon are an alias.
        is_variable && given(operation) == 1
    })
}

/// Returns the selection of the only operation, and the only arguments in it.
fn parts<'t, 'd>(tokens: &'t [Token<'d>]) -> Option<(&'t [Token<'d>], &'t [Token<'d>])> {
    let is = |mark: char| move |token: &Token<'_>| *token == Token::Mark(mark);
    let begin = selection_begins(tokens)?;
    let (_, operation) = tokens.split_at(begin);
    let mut depth = 0_usize;
    for (index, token) in operation.iter().enumerate() {
        match token {
            Token::Mark('{') => depth += 1,
            Token::Mark('}') => depth = depth.checked_sub(1)?,
            _ => {}
        }
        // Anything behind the selection would be another operation or a fragment.
        if depth == 0 && index + 1 != operation.len() {
            return None;
        }
    }
    let opens = operation.iter().position(is('('))?;
    let closes = operation.iter().position(is(')'))?;
    let is_only = |mark| operation.iter().filter(|token| is(mark)(token)).count() == 1;
    let arguments = operation.get(opens..closes)?;
    (depth == 0 && is_only('(') && is_only(')')).then_some((operation, arguments))
}

/// Returns where the first selection begins: behind the declaration of variables, in which braces
/// are default values.
fn selection_begins(tokens: &[Token<'_>]) -> Option<usize> {
    let mut is_declaring = false;
    for (index, token) in tokens.iter().enumerate() {
        match token {
            Token::Mark('(') => is_declaring = true,
            Token::Mark(')') => is_declaring = false,
            Token::Mark('{') if is_declaring => return None,
            Token::Mark('{') => return Some(index),
            _ => {}
        }
    }
    None
}

/// Returns the document's tokens; `None` if it holds text, or a character that no document holds.
fn tokens(document: &str) -> Option<Vec<Token<'_>>> {
    let mut tokens = Vec::new();
    let mut rest = document;
    while let Some(first) = rest.chars().next() {
        let is_of_name = |c: char| c == '_' || c.is_ascii_alphanumeric();
        let length = match first {
            '#' => rest.find(['\n', '\r']).unwrap_or(rest.len()),
            ' ' | '\t' | '\n' | '\r' | ',' | '\u{feff}' => first.len_utf8(),
            '!' | '$' | '&' | '(' | ')' | ':' | '=' | '@' | '[' | ']' | '{' | '|' | '}' => {
                tokens.push(Token::Mark(first));
                1
            }
            '.' | '-' | '+' | '0'..='9' => {
                tokens.push(Token::Other);
                1
            }
            first if is_of_name(first) => {
                let end = rest.find(|c| !is_of_name(c)).unwrap_or(rest.len());
                tokens.push(Token::Name(&rest[..end]));
                end
            }
            _ => return None,
        };
        rest = &rest[length..];
    }
    Some(tokens)
}

#[cfg(test)]
mod tests {
    use super::is_one_guess;

    #[test]
    fn s12_a_document_with_one_guess_is_let_through() {
        for document in [
            "mutation Login($email: String!, $password: String!) { login(email: $email, password: $password) { token user { id } } }",
            "mutation($email:String!,$p:String!){login(input:{email:$email,password:$p}){token}}",
            "mutation ($email: String!, $p: String!) { # who \" tries\n auth { me: login(email: $email, password: $p, ttl: 3600) { token } } }",
        ] {
            assert!(is_one_guess(document, "email"), "{document}");
        }
    }

    #[test]
    fn s12_a_document_that_may_carry_another_guess_is_refused() {
        for document in [
            "mutation { a: login(email: $email, password: $p) b: login(email: $email, password: $q) }",
            "mutation { a: login(email: $email, password: $p) b: login(email: $other, password: $q) }",
            "mutation { login(email: $email, password: $p) loginByPhone(phone: $q) }",
            "mutation { login(email: \"ann\", password: \"x\") }",
            "mutation { login(email: $email, password: \"x\") }",
            "mutation { login(email: $other, password: $p, note: $email) }",
            "mutation { login(email: $other, password: $p) email: me }",
            "mutation { login(input: {email: $email}, input: {email: $other}) }",
            "mutation A { login(email: $email, password: $p) } mutation B { login(email: $o, password: $p) }",
            "mutation { login(email: $email, password: $p) } fragment F on M { login(email: $o) }",
            "fragment F on M { x } mutation { login(email: $email, password: $p) }",
            "mutation($d: In = {email: 1}) { login(email: $email, password: $p) }",
            "mutation { login(email: $email, password: $p) @a(b: $c) }",
            "mutation { login(email: $email password: $p",
            "mutation { login }",
            "",
        ] {
            assert!(!is_one_guess(document, "email"), "{document}");
        }
    }
}
