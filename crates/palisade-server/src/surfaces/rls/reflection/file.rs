//! Builds descriptors of files from a few words each.

use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, EnumValueDescriptorProto, FieldDescriptorProto,
    FileDescriptorProto, MessageOptions, MethodDescriptorProto, OneofDescriptorProto,
    ServiceDescriptorProto,
};

/// Returns the descriptor of a `.proto` file in `package` that imports the files `needs`.
pub(super) fn file(name: &str, package: &str, needs: &[&str]) -> FileDescriptorProto {
    FileDescriptorProto {
        name: Some(name.to_owned()),
        package: Some(package.to_owned()),
        dependency: needs.iter().map(|name| (*name).to_owned()).collect(),
        syntax: Some("proto3".to_owned()),
        ..FileDescriptorProto::default()
    }
}

/// A message with these fields: `"number label? type name"`, where a type with a dot is a
/// message and one with `enum ` before it an enumeration. A `|` after the name puts the field
/// into the message's choice of that name.
pub(super) fn message(name: &str, fields: &[&str]) -> DescriptorProto {
    let mut message = DescriptorProto {
        name: Some(name.to_owned()),
        ..DescriptorProto::default()
    };
    for written in fields {
        let field = field(written, &mut message.oneof_decl);
        message.field.push(field);
    }
    message
}

fn field(written: &str, choices: &mut Vec<OneofDescriptorProto>) -> FieldDescriptorProto {
    let (written, choice) = match written.split_once('|') {
        Some((field, choice)) => (field, Some(choice)),
        None => (written, None),
    };
    let words: Vec<&str> = written.split(' ').collect();
    let (is_repeated, is_enum) = (words.contains(&"repeated"), words.contains(&"enum"));
    let [number, .., kind, name] = words.as_slice() else {
        return FieldDescriptorProto::default();
    };
    let (kind, type_name) = kind_of(kind, is_enum);
    FieldDescriptorProto {
        name: Some((*name).to_owned()),
        json_name: Some(json_name(name)),
        number: number.parse().ok(),
        label: Some(match is_repeated {
            true => Label::Repeated as i32,
            false => Label::Optional as i32,
        }),
        r#type: Some(kind as i32),
        type_name,
        oneof_index: choice.map(|choice| position(choices, choice)),
        ..FieldDescriptorProto::default()
    }
}

fn kind_of(word: &str, is_enum: bool) -> (Type, Option<String>) {
    let plain = match word {
        "string" => Type::String,
        "bytes" => Type::Bytes,
        "bool" => Type::Bool,
        "uint32" => Type::Uint32,
        "uint64" => Type::Uint64,
        "int32" => Type::Int32,
        "int64" => Type::Int64,
        "double" => Type::Double,
        _ if is_enum => return (Type::Enum, Some(word.to_owned())),
        _ => return (Type::Message, Some(word.to_owned())),
    };
    (plain, None)
}

fn position(choices: &mut Vec<OneofDescriptorProto>, name: &str) -> i32 {
    let known = choices.iter().position(|choice| choice.name() == name);
    let position = known.unwrap_or_else(|| {
        choices.push(OneofDescriptorProto {
            name: Some(name.to_owned()),
            options: None,
        });
        choices.len() - 1
    });
    i32::try_from(position).unwrap_or_default()
}

fn json_name(name: &str) -> String {
    let mut words = name.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |text, word| {
        let (head, tail) = word.split_at(word.len().min(1));
        text + &head.to_ascii_uppercase() + tail
    })
}

/// The entry type of a map from text to this type.
pub(super) fn map_entry(name: &str, value: &str) -> DescriptorProto {
    DescriptorProto {
        options: Some(MessageOptions {
            map_entry: Some(true),
            ..MessageOptions::default()
        }),
        ..message(name, &["1 string key", &format!("2 {value} value")])
    }
}

/// An enumeration with these names and numbers.
pub(super) fn enumeration(name: &str, values: &[(&str, i32)]) -> EnumDescriptorProto {
    let value = |(name, number): &(&str, i32)| EnumValueDescriptorProto {
        name: Some((*name).to_owned()),
        number: Some(*number),
        options: None,
    };
    EnumDescriptorProto {
        name: Some(name.to_owned()),
        value: values.iter().map(value).collect(),
        ..EnumDescriptorProto::default()
    }
}

/// A method: its name, its request type, its response type, and whether each of these is a stream.
pub(super) type Method<'a> = (&'a str, &'a str, &'a str, [bool; 2]);

/// A service with these methods.
pub(super) fn service(name: &str, methods: &[Method<'_>]) -> ServiceDescriptorProto {
    let method = |(name, input, output, streams): &Method<'_>| MethodDescriptorProto {
        name: Some((*name).to_owned()),
        input_type: Some((*input).to_owned()),
        output_type: Some((*output).to_owned()),
        options: None,
        client_streaming: Some(streams[0]),
        server_streaming: Some(streams[1]),
    };
    ServiceDescriptorProto {
        name: Some(name.to_owned()),
        method: methods.iter().map(method).collect(),
        options: None,
    }
}

/// Whether a file defines this symbol: a service, one of its methods, a message or an enumeration.
pub(super) fn defines(file: &FileDescriptorProto, symbol: &str) -> bool {
    let prefix = format!("{}.", file.package());
    let Some(name) = symbol.strip_prefix(&prefix) else {
        return false;
    };
    let of_service = |service: &ServiceDescriptorProto| {
        let rest = name.strip_prefix(service.name());
        rest.is_some_and(|rest| {
            let mut methods = service.method.iter();
            rest.is_empty() || methods.any(|m| rest.strip_prefix('.') == Some(m.name()))
        })
    };
    file.service.iter().any(of_service)
        || file.enum_type.iter().any(|one| one.name() == name)
        || file.message_type.iter().any(|one| holds(one, name))
}

fn holds(message: &DescriptorProto, name: &str) -> bool {
    if message.name() == name {
        return true;
    }
    let inner = name.strip_prefix(message.name());
    let Some(inner) = inner.and_then(|rest| rest.strip_prefix('.')) else {
        return false;
    };
    message.enum_type.iter().any(|one| one.name() == inner)
        || message.nested_type.iter().any(|one| holds(one, inner))
}

/// The types that a file refers to.
#[cfg(test)]
pub(super) fn references(file: &FileDescriptorProto) -> Vec<String> {
    fn of(message: &DescriptorProto, found: &mut Vec<String>) {
        found.extend(message.field.iter().filter_map(|f| f.type_name.clone()));
        message.nested_type.iter().for_each(|one| of(one, found));
    }
    let mut found = Vec::new();
    file.message_type.iter().for_each(|one| of(one, &mut found));
    for method in file.service.iter().flat_map(|service| &service.method) {
        found.extend([
            method.input_type().to_owned(),
            method.output_type().to_owned(),
        ]);
    }
    found
}
