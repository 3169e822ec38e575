"""Fields of INFO for what is not here: scripts, replicas, eviction, forks. All are 0.

Tools read them without asking whether they are there.
"""

from collections.abc import Mapping

_SHARES = {"current_fork_perc", "instantaneous_input_repl_kbps", "instantaneous_output_repl_kbps"}
_SIZES = {"used_memory_lua_human", "used_memory_scripts_human", "used_memory_vm_total_human"}

_NAMES = {
    "Memory": """
        used_memory_lua used_memory_lua_human used_memory_vm_eval used_memory_vm_functions
        used_memory_vm_total used_memory_vm_total_human used_memory_functions used_memory_scripts
        used_memory_scripts_eval used_memory_scripts_human number_of_cached_scripts
        number_of_functions number_of_libraries mem_not_counted_for_evict mem_replication_backlog
        mem_total_replication_buffers mem_replica_full_sync_buffer mem_clients_slaves
        mem_cluster_links mem_cluster_slot_migration_output_buffer
        mem_cluster_slot_migration_input_buffer mem_cluster_slot_migration_input_buffer_peak
        mem_aof_buffer mem_overhead_db_hashtable_rehashing active_defrag_running
        lazyfree_pending_objects lazyfreed_objects
    """,
    "Persistence": """
        async_loading aof_rewrite_scheduled aof_pending_bio_fsync current_cow_peak
        current_cow_size current_cow_size_age current_fork_perc current_save_keys_processed
        current_save_keys_total rdb_last_cow_size rdb_last_load_keys_expired
        rdb_last_load_keys_loaded aof_last_cow_size module_fork_in_progress
        module_fork_last_cow_size
    """,
    "Stats": """
        total_net_repl_input_bytes total_net_repl_output_bytes instantaneous_input_repl_kbps
        instantaneous_output_repl_kbps sync_full sync_partial_ok sync_partial_err expired_subkeys
        expired_subkeys_active expired_time_cap_reached_count evicted_keys
        evicted_scripts total_eviction_exceeded_time current_eviction_exceeded_time
        pubsub_channels pubsub_patterns pubsubshard_channels latest_fork_usec total_forks
        migrate_cached_sockets slave_expires_tracked_keys active_defrag_hits active_defrag_misses
        active_defrag_key_hits active_defrag_key_misses total_active_defrag_time
        current_active_defrag_time unexpected_error_replies io_threaded_reads_processed
        io_threaded_writes_processed io_threaded_total_prefetch_batches
        io_threaded_total_prefetch_entries acl_access_denied_tls_cert
    """,
}


def _nothing(name: str) -> object:
    return "0.00" if name in _SHARES else "0B" if name in _SIZES else 0


ABSENT: Mapping[str, tuple[tuple[str, object], ...]] = {
    section: tuple((name, _nothing(name)) for name in names.split())
    for section, names in _NAMES.items()
}
"""By section; they stand behind its other fields."""
