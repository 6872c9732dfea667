//! Server reflection: the services at this address, and the files that describe them. The same
//! messages answer version `v1` and its predecessor.

mod file;
mod schema;

use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::unfold;
use hyper::body::Frame;
use palisade::deadline::within;
use prost::Message;
use prost_types::FileDescriptorProto;

use super::grpc::{self, Code, Frames, GrpcError, Messages};

/// Longest time to wait for the next question of a call. Then the call ends.
const QUESTION_TIME: Duration = Duration::from_secs(60);

#[derive(Clone, PartialEq, Message)]
struct Request {
    #[prost(string, tag = "1")]
    host: String,
    #[prost(oneof = "ReflectionQuery", tags = "3, 4, 5, 6, 7")]
    asked: Option<ReflectionQuery>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum ReflectionQuery {
    #[prost(string, tag = "3")]
    FileByName(String),
    #[prost(string, tag = "4")]
    FileOfSymbol(String),
    #[prost(message, tag = "5")]
    FileOfExtension(Extension),
    #[prost(string, tag = "6")]
    ExtensionsOf(String),
    #[prost(string, tag = "7")]
    Services(String),
}

#[derive(Clone, PartialEq, Message)]
struct Extension {
    #[prost(string, tag = "1")]
    containing_type: String,
    #[prost(int32, tag = "2")]
    number: i32,
}

#[derive(Clone, PartialEq, Message)]
struct Response {
    #[prost(string, tag = "1")]
    valid_host: String,
    #[prost(message, optional, tag = "2")]
    original_request: Option<Request>,
    #[prost(oneof = "Answer", tags = "4, 6, 7")]
    answer: Option<Answer>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Answer {
    #[prost(message, tag = "4")]
    Files(Files),
    #[prost(message, tag = "6")]
    Services(Services),
    #[prost(message, tag = "7")]
    Error(Error),
}

#[derive(Clone, PartialEq, Message)]
struct Files {
    #[prost(bytes = "vec", repeated, tag = "1")]
    files: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct Services {
    #[prost(message, repeated, tag = "1")]
    services: Vec<Service>,
}

#[derive(Clone, PartialEq, Message)]
struct Service {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct Error {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
}

/// Answers each question of a call, until there are no more.
pub(super) fn answer(questions: Messages) -> Frames {
    Box::pin(unfold(Some(questions), |questions| async {
        let mut questions = questions?;
        let asked = within(QUESTION_TIME, pin!(questions.next())).await;
        let next = match asked.unwrap_or(Ok(None)) {
            Ok(Some(message)) => Request::decode(message)
                .map_err(|_| GrpcError::new(Code::InvalidArgument, "the message is no question"))
                .map(Some),
            Ok(None) => Ok(None),
            Err(failed) => Err(failed),
        };
        Some(match next {
            Ok(Some(request)) => (frame(request), Some(questions)),
            Ok(None) => (Frame::trailers(grpc::done()), None),
            Err(failed) => (Frame::trailers(failed.trailers()), None),
        })
    }))
}

fn frame(request: Request) -> Frame<Bytes> {
    let response = Response {
        valid_host: request.host.clone(),
        answer: Some(about(request.asked.as_ref())),
        original_request: Some(request),
    };
    Frame::data(grpc::framed(&response))
}

fn about(asked: Option<&ReflectionQuery>) -> Answer {
    let found = match asked {
        Some(ReflectionQuery::Services(_)) => {
            let named = |name: &&str| Service {
                name: (*name).to_owned(),
            };
            let services = super::SERVICES.iter().map(named).collect();
            return Answer::Services(Services { services });
        }
        Some(ReflectionQuery::FileByName(name)) => {
            schema::files().into_iter().find(|f| f.name() == name)
        }
        Some(ReflectionQuery::FileOfSymbol(symbol)) => schema::files()
            .into_iter()
            .find(|f| file::defines(f, symbol)),
        // No file here has extensions.
        Some(ReflectionQuery::FileOfExtension(_) | ReflectionQuery::ExtensionsOf(_)) | None => None,
    };
    match found {
        Some(found) => Answer::Files(Files {
            files: with_dependencies(&found),
        }),
        None => Answer::Error(Error {
            code: Code::NotFound as i32,
            message: "there is nothing of that name here".to_owned(),
        }),
    }
}

/// Returns a file and all files that it needs, itself first.
fn with_dependencies(file: &FileDescriptorProto) -> Vec<Vec<u8>> {
    let all = schema::files();
    let mut wanted = vec![file.name().to_owned()];
    let mut at = 0;
    // The list grows during the loop: a file's dependencies may have dependencies.
    while let Some(name) = wanted.get(at).cloned() {
        let found = all.iter().find(|file| file.name() == name);
        for needed in found.into_iter().flat_map(|file| &file.dependency) {
            if !wanted.contains(needed) {
                wanted.push(needed.clone());
            }
        }
        at += 1;
    }
    let found = wanted
        .iter()
        .filter_map(|name| all.iter().find(|file| file.name() == name));
    found.map(Message::encode_to_vec).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_and_type_that_a_file_refers_to_is_there() {
        let all = schema::files();
        for one in &all {
            for needed in &one.dependency {
                assert!(all.iter().any(|file| file.name() == needed), "{needed}");
            }
            for name in file::references(one) {
                let symbol = name.trim_start_matches('.');
                assert!(all.iter().any(|file| file::defines(file, symbol)), "{name}");
            }
        }
    }

    #[test]
    fn every_service_is_described_by_a_file() {
        for service in super::super::SERVICES {
            let found = schema::files()
                .into_iter()
                .find(|f| file::defines(f, service));
            assert!(
                found.is_some_and(|file| !with_dependencies(&file).is_empty()),
                "{service}"
            );
        }
    }
}
