//! The part of the Redis protocol that limits need: bytes → requests → commands, and answers →
//! bytes. Pure: the caller owns sockets and the engine.
//!
//! ```
//! use palisade::resp::{Command, Replies, Version, read};
//!
//! let input = b"*5\r\n$11\r\nCL.THROTTLE\r\n$3\r\nann\r\n$2\r\n15\r\n$2\r\n30\r\n$2\r\n60\r\n";
//! let request = read(input)?.expect("a whole request");
//! assert_eq!(request.bytes, input.len());
//! let Ok(Command::Throttle(asked)) = Command::of(&request.args) else {
//!     panic!("a command");
//! };
//! assert_eq!(asked.key, b"ann");
//!
//! let mut replies = Replies::default();
//! replies.integers(&[0, 16, 15, -1, 2]);
//! assert_eq!(replies.bytes(), b"*5\r\n:0\r\n:16\r\n:15\r\n:-1\r\n:2\r\n");
//! # assert_eq!(replies.version, Version::Two);
//! # Ok::<(), palisade::resp::ProtocolError>(())
//! ```

mod command;
mod reply;
mod request;
mod throttle;

pub use command::{Client, Command, CommandError, Hello, List, commands};
pub use reply::{Replies, Version};
pub use request::{
    ARGS_MAX, Args, BULK_BYTES_MAX, ProtocolError, REQUEST_BYTES_MAX, Request, read,
};
pub use throttle::{KEY_BYTES_MAX, Throttle};
