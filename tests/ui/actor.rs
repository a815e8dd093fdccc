use ringmem_kernels::{SharedLayout, kernels};

#[derive(Clone, Copy, SharedLayout)]
#[repr(C)]
#[layout(message = 1)]
pub struct Order {
    limit: u64,
}

#[derive(Clone, Copy, SharedLayout)]
#[repr(C)]
#[layout(message = 2)]
pub struct Alarm {
    price: u64,
}

#[derive(Default)]
pub struct Prices {
    last: u64,
}

kernels! {
    pub persistent fn watch(prices: &mut Prices, now: Option<&Order>) -> Option<Alarm> {
        prices.last += now.map_or(1, |order| order.limit);
        (prices.last % 7 == 0).then(|| Alarm { price: prices.last })
    }
}

fn main() {}
