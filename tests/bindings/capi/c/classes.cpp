// The header in C++17: a mailbox in a class, and a message of a vector.
#include <deck.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

void check(int result)
{
    if (result != DECK_OK) {
        std::fprintf(stderr, "%s\n", deck_errmsg());
        std::exit(1);
    }
}

class Clone {
public:
    explicit Clone(const std::string &name) { check(deck_mbox_clone(&box_, name.c_str())); }
    ~Clone() { check(deck_mbox_destroy(&box_)); }
    Clone(const Clone &) = delete;
    Clone &operator=(const Clone &) = delete;

    void post(const std::vector<double> &numbers)
    {
        deck_msg_t msg;
        check(deck_msg_create(&msg, numbers.size() * sizeof(double)));
        check(deck_msg_pack(&msg, DECK_DOUBLE, numbers.data(), numbers.size()));
        check(deck_mbox_post(&box_, &msg));
        check(deck_msg_destroy(&msg));
    }

private:
    deck_mbox_t box_;
};

} // namespace

int main(int argc, char **argv)
{
    check(deck_init(&argc, &argv));
    if (deck_node() == 0) {
        deck_mbox_t box;
        deck_msg_t msg;
        double sum = 0;
        check(deck_mbox_create(&box, "numbers"));
        check(deck_msg_create(&msg, 1000 * sizeof(double)));
        for (unsigned long n = 1; n < deck_numnodes(); ++n) {
            check(deck_mbox_retrv(&box, &msg));
            std::vector<double> numbers(msg.datalen / sizeof(double));
            check(deck_msg_unpack(&msg, DECK_DOUBLE, numbers.data(), numbers.size()));
            for (double number : numbers)
                sum += number;
        }
        std::printf("the sum is %.1f\n", sum);
        check(deck_msg_destroy(&msg));
        check(deck_mbox_destroy(&box));
    } else {
        Clone("numbers").post(std::vector<double>(1000, double(deck_node())));
    }
    check(deck_done());
    return 0;
}
