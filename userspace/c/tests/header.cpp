// The header in C++: its declarations, and enums of other numbers.
#include <sumac.h>

int main()
{
    sumac_client *client = nullptr;
    sumac_job_options options;
    if (sumac_job_options_init(&options, sizeof options) != SUMAC_OK || options.mode != SUMAC_MODE_DEFAULT)
        return 1;
    options.mode = SUMAC_MODE_DIRECT;
    return sumac_connect("/no/such.sock", SUMAC_ABI_VERSION, &client) == SUMAC_ERR_CONNECTION ? 0 : 1;
}
