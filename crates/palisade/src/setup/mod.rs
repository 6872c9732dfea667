//! The way from an address, a secret and a policy to a running engine, shared by
//! [`Palisade::builder`](crate::Palisade::builder) and the server.

mod builder;
mod data_dir;
mod opening;
mod palisade;
mod store_url;

pub use builder::{BuildError, Builder, StoreSource};
pub use data_dir::{
    SECRET_FILE, SECRET_VARIABLE, create_data_dir, read_secret, starting_secret, try_write,
    without_line_end,
};
#[cfg(feature = "postgres")]
pub use opening::postgres_config;
pub use opening::{OpeningError, PreparedStore, StoreConfig};
pub use palisade::Palisade;
pub use store_url::StoreUrl;
