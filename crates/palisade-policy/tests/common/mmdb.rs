//! A writer of small databases in MaxMind's format, for tests: IPv6 with IPv4 in `::/96`, records of
//! 32 bits.
#![allow(dead_code, reason = "each test file uses its part of it")]

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;

/// Networks and what a database says about each.
#[derive(Clone, Default)]
pub(crate) struct Mmdb(Vec<(IpNet, Record)>);

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Record {
    Country(String),
    Network(u32),
}

/// A record of a node: nothing, another node, or data by its offset.
#[derive(Clone, Copy)]
enum Branch {
    Nothing,
    Node(usize),
    Data(usize),
}

impl Mmdb {
    /// A database of countries, such as `("203.0.113.0/24", "ES")`.
    pub(crate) fn of_countries(countries: &[(&str, &str)]) -> Vec<u8> {
        let country = |code: &str| Record::Country(code.to_owned());
        let all = countries.iter();
        Self(
            all.map(|(net, code)| (net.parse().unwrap(), country(code)))
                .collect(),
        )
        .bytes()
    }

    /// A database of networks.
    pub(crate) fn of_networks(networks: &[(&str, u32)]) -> Vec<u8> {
        let all = networks.iter();
        let all = all.map(|(net, number)| (net.parse().unwrap(), Record::Network(*number)));
        Self(all.collect()).bytes()
    }

    fn bytes(&self) -> Vec<u8> {
        let (mut data, mut offsets) = (Vec::new(), BTreeMap::new());
        let mut nodes = vec![[Branch::Nothing; 2]];
        for (net, record) in &self.0 {
            let offset = *offsets.entry(record.clone()).or_insert_with(|| {
                let offset = data.len();
                record.write(&mut data);
                offset
            });
            insert(&mut nodes, net, offset);
        }
        let mut bytes = tree(&nodes);
        bytes.extend([0; 16]);
        bytes.extend(data);
        bytes.extend(b"\xab\xcd\xefMaxMind.com");
        metadata(&mut bytes, nodes.len());
        bytes
    }
}

/// The bits of a network's address, the first one first, as of an IPv6 address.
fn bits(net: &IpNet) -> Vec<usize> {
    let (address, length) = match net.network() {
        IpAddr::V4(v4) => (u128::from(u32::from(v4)), 96 + net.prefix_len()),
        IpAddr::V6(v6) => (u128::from(v6), net.prefix_len()),
    };
    let bit = |at: u8| usize::from(address >> (127 - at) & 1 == 1);
    (0..length).map(bit).collect()
}

fn insert(nodes: &mut Vec<[Branch; 2]>, net: &IpNet, offset: usize) {
    let bits = bits(net);
    let (last, way) = bits.split_last().unwrap();
    let mut at = 0;
    for bit in way {
        at = match nodes[at][*bit] {
            Branch::Node(next) => next,
            before => {
                // A wider network goes on beside the narrower one.
                nodes.push([before; 2]);
                let next = nodes.len() - 1;
                nodes[at][*bit] = Branch::Node(next);
                next
            }
        };
    }
    nodes[at][*last] = Branch::Data(offset);
}

fn tree(nodes: &[[Branch; 2]]) -> Vec<u8> {
    let number = |branch: &Branch| match branch {
        Branch::Nothing => nodes.len(),
        Branch::Node(node) => *node,
        Branch::Data(offset) => nodes.len() + 16 + offset,
    };
    let all = nodes.iter().flatten();
    all.flat_map(|branch| u32::try_from(number(branch)).unwrap().to_be_bytes())
        .collect()
}

impl Record {
    fn write(&self, data: &mut Vec<u8>) {
        map(data, 1);
        match self {
            Self::Country(code) => {
                text(data, "country");
                map(data, 1);
                text(data, "iso_code");
                text(data, code);
            }
            Self::Network(number) => {
                text(data, "autonomous_system_number");
                number_of(data, 6, &number.to_be_bytes());
            }
        }
    }
}

fn map(data: &mut Vec<u8>, members: u8) {
    data.push(7 << 5 | members);
}

fn text(data: &mut Vec<u8>, text: &str) {
    let length = u8::try_from(text.len()).unwrap();
    match length {
        0..29 => data.push(2 << 5 | length),
        _ => data.extend([2 << 5 | 29, length - 29]),
    }
    data.extend(text.as_bytes());
}

/// A number of one of the first seven types.
fn number_of(data: &mut Vec<u8>, kind: u8, bytes: &[u8]) {
    data.push(kind << 5 | u8::try_from(bytes.len()).unwrap());
    data.extend(bytes);
}

fn metadata(data: &mut Vec<u8>, nodes: usize) {
    map(data, 9);
    for (name, value) in [
        ("binary_format_major_version", 2_u16),
        ("binary_format_minor_version", 0),
        ("ip_version", 6),
        ("record_size", 32),
    ] {
        text(data, name);
        number_of(data, 5, &value.to_be_bytes());
    }
    text(data, "node_count");
    number_of(data, 6, &u32::try_from(nodes).unwrap().to_be_bytes());
    text(data, "build_epoch");
    // A number of 64 bits: its type is written behind its size.
    data.extend([8, 9 - 7]);
    data.extend(1_772_409_600_u64.to_be_bytes());
    text(data, "database_type");
    text(data, "Test");
    text(data, "languages");
    data.extend([1, 11 - 7]);
    text(data, "en");
    text(data, "description");
    map(data, 1);
    text(data, "en");
    text(data, "A test");
}
