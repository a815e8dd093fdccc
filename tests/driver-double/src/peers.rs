pub struct Peers {
    rows: Vec<u64>,
}

impl Peers {
    pub fn parse(text: &str, devices: u32) -> Result<Self, String> {
        let count = devices as usize;
        let mut rows = vec![0; count];
        match text {
            "none" => {}
            "" | "all" => rows.fill(u64::MAX.checked_shr(64 - devices).unwrap_or(0)),
            pairs => {
                for pair in pairs.split(',') {
                    let ends = pair.split_once('>').and_then(|(from, to)| Some((from.parse::<usize>().ok()?, to.parse::<usize>().ok()?)));
                    match ends {
                        Some((from, to)) if from < count && to < count && from != to => rows[from] |= 1 << to,
                        _ => return Err(format!("`{pair}` is not FROM>TO of two of {count} devices")),
                    }
                }
            }
        }
        Ok(Self { rows })
    }

    pub fn can_reach(&self, device: u32, peer: u32) -> bool {
        device != peer && self.rows[device as usize] >> peer & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_peer_direction_is_parsed_separately() {
        let rows = |text| Peers::parse(text, 3).map(|peers| (0..9).map(|i| u8::from(peers.can_reach(i / 3, i % 3))).collect::<Vec<_>>());
        assert_eq!(rows("0>1,2>0"), Ok(vec![0, 1, 0, 0, 0, 0, 1, 0, 0]));
        assert_eq!(rows("none"), Ok(vec![0; 9]));
        assert_eq!(rows(""), Ok(vec![0, 1, 1, 1, 0, 1, 1, 1, 0]));
        for text in ["0>3", "1>1", "0", "0>1>2", "some"] {
            assert!(rows(text).is_err(), "{text}");
        }
    }
}
