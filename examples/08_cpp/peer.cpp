// The C++ process of the example: takes orders from the ring in one file, and puts fills into the ring in another.

#include "layouts.h"

#include <iostream>
#include <ringmem.hpp>

RINGMEM_MESSAGE(Order);
RINGMEM_MESSAGE(Fill);

int main(int argc, char** argv) try {
    if (argc != 3) throw std::invalid_argument("usage: peer ORDERS FILLS");
    auto orders = ringmem::ring::open(argv[1]).value().consumer<Order>().value();
    auto fills = ringmem::ring::open(argv[2]).value().producer<Fill>().value();
    for (uint64_t count = 0;; ++count) {
        const auto order = orders.pop_wait();
        if (order.status() == RINGMEM_STATUS_DISCONNECTED) {
            std::cout << count << " orders in C++\n";
            return 0;
        }
        const auto& [id, price, quantity] = order.value();
        fills.push_wait(Fill{id, price * double(quantity)}).value();
    }
} catch (const std::exception& error) {
    std::cerr << "peer: " << error.what() << '\n';
    return 1;
}
