{{/* "true" where the chart runs a Redis: an address in the values replaces it. */}}
{{- define "slipstream.ownRedis" -}}
{{- if and .Values.redis.enabled (not .Values.redis.url) (not .Values.redis.existingSecret.name) -}}true{{- end -}}
{{- end -}}

{{- define "slipstream.hasRedis" -}}
{{- if or .Values.redis.url .Values.redis.existingSecret.name .Values.redis.enabled -}}true{{- end -}}
{{- end -}}

{{/* redis.conf but for the password. Each write goes to a file, so that a restart forgets nothing; nothing is evicted. */}}
{{- define "slipstream.redisConf" -}}
port 6379
save ""
appendonly yes
maxmemory {{ .Values.redis.maxMemory }}
maxmemory-policy noeviction
{{- end -}}

{{/* Environment that gateway and operator share: where Redis is. */}}
{{- define "slipstream.redisEnv" -}}
{{- if eq (include "slipstream.hasRedis" .) "true" -}}
- name: SLIPSTREAM_REDIS_URL
  valueFrom:
    secretKeyRef:
      {{- if .Values.redis.existingSecret.name }}
      name: {{ .Values.redis.existingSecret.name }}
      key: {{ .Values.redis.existingSecret.key }}
      {{- else }}
      name: {{ include "slipstream.fullname" . }}-redis
      key: url
      {{- end }}
{{- end }}
{{- end -}}

{{/*
Changes with the address of Redis, so that pods start again; not with a generated password, which is looked up.
*/}}
{{- define "slipstream.redisChecksum" -}}
{{- $redis := .Values.redis -}}
{{- printf "%s %s %s %s" $redis.url $redis.existingSecret.name (include "slipstream.ownRedis" .) $redis.password | sha256sum | trunc 16 -}}
{{- end -}}
