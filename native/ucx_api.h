// The functions of libucp, found at run time: whoever does not use UCX need not have it installed.
#pragma once

#include <ucp/api/ucp.h>

#include <string>

#include "ucx.h"

namespace byteps {

// clang-format off
#define BYTEPS_UCX_FUNCTIONS(of) \
  of(ucp_get_version) of(ucp_config_read) of(ucp_config_modify) of(ucp_config_release) \
  of(ucp_init_version) of(ucp_cleanup) of(ucp_context_print_info) of(ucp_mem_map) of(ucp_mem_query) \
  of(ucp_mem_unmap) of(ucp_worker_create) of(ucp_worker_destroy) of(ucp_worker_get_address) \
  of(ucp_worker_release_address) of(ucp_worker_get_efd) of(ucp_worker_arm) of(ucp_worker_progress) \
  of(ucp_worker_set_am_recv_handler) of(ucp_ep_create) of(ucp_ep_flush_nbx) of(ucp_ep_close_nbx) \
  of(ucp_am_send_nbx) of(ucp_am_recv_data_nbx) of(ucp_am_data_release) of(ucp_request_check_status) \
  of(ucp_request_free) of(ucs_status_string)
// clang-format on

struct UcxApi {
  UcxApi();  // throws UcxError
  ~UcxApi();
  UcxApi(const UcxApi&) = delete;
  UcxApi& operator=(const UcxApi&) = delete;

  // Throws UcxError unless the status is good.
  void check(ucs_status_t status, const std::string& what) const;

  void* library;
#define BYTEPS_UCX_MEMBER(name) decltype(&::name) name;
  BYTEPS_UCX_FUNCTIONS(BYTEPS_UCX_MEMBER)
#undef BYTEPS_UCX_MEMBER
};

}  // namespace byteps
